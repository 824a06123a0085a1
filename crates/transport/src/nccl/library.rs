//! NCCL's functions, in a library that is opened at run time.
//!
//! Sources: `nccl.h` of NCCL 2.28, and the chapters of NCCL's user guide on non-blocking communicators and on error
//! handling.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use stagecoach_kernels::c_functions;
use stagecoach_kernels::library::LibraryError;

/// The library's only name in NVIDIA's packages.
const LIBRARY: &str = "libnccl.so.2";

/// `NCCL_VERSION(2, 18, 0)`: the first version with all fields of [`Config`].
const MIN_VERSION: c_int = 21_800;

/// `ncclComm_t`.
pub(super) type RawCommunicator = *mut c_void;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInvalidUsage`.
pub(super) const INVALID_USAGE: c_int = 5;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclUint8`: all messages are bytes.
pub(super) const UINT8: c_int = 1;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawUniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` of NCCL 2.18. Newer versions recognise this layout by `size` and `version`.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// The maximum number of thread blocks that a communicator occupies on a GPU. One block is too few for the bandwidth of
/// a fast link.
const MAX_CTAS: c_int = 4;

impl Config {
    /// Returns a configuration with which NCCL's calls do not block.
    pub(super) fn non_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: MIN_VERSION as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: MAX_CTAS,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

c_functions! {
    NcclFunctions {
        get_version: "ncclGetVersion" (*mut c_int),
        get_unique_id: "ncclGetUniqueId" (*mut RawUniqueId),
        init: "ncclCommInitRankConfig" (*mut RawCommunicator, c_int, RawUniqueId, c_int, *mut Config),
        get_async_error: "ncclCommGetAsyncError" (RawCommunicator, *mut c_int),
        finalize: "ncclCommFinalize" (RawCommunicator),
        destroy: "ncclCommDestroy" (RawCommunicator),
        abort: "ncclCommAbort" (RawCommunicator),
        send: "ncclSend" (*const c_void, usize, c_int, c_int, RawCommunicator, *mut c_void),
        receive: "ncclRecv" (*mut c_void, usize, c_int, c_int, RawCommunicator, *mut c_void),
    } returns c_int
}

c_functions! {
    /// NCCL's functions for error messages.
    NcclErrors {
        get_error_string: "ncclGetErrorString" (c_int),
        get_last_error: "ncclGetLastError" (RawCommunicator),
    } returns *const c_char
}

/// The NCCL library.
#[derive(Debug)]
pub(crate) struct Nccl {
    pub(super) functions: NcclFunctions,
    pub(super) errors: NcclErrors,
}

impl Nccl {
    /// Returns the NCCL library, which the first call opens.
    ///
    /// # Errors
    /// Returns a sentence if NCCL is missing or too old.
    pub(crate) fn get() -> Result<&'static Nccl, String> {
        static NCCL: OnceLock<Result<Nccl, String>> = OnceLock::new();
        NCCL.get_or_init(|| Nccl::open(LIBRARY)).as_ref().map_err(Clone::clone)
    }

    fn open(name: &str) -> Result<Nccl, String> {
        let unusable = |error: LibraryError| match error {
            LibraryError::Missing { .. } => format!("{error}; NCCL comes with the image trainer-cuda"),
            LibraryError::TooOld { .. } => format!("{error}: NCCL 2.18 or newer is needed"),
        };
        let functions = NcclFunctions::open(name).map_err(unusable)?;
        let errors = NcclErrors::open(name).map_err(unusable)?;
        let mut version = 0;
        // SAFETY: the call writes one integer.
        let result = unsafe { (functions.get_version)(&mut version) };
        if result != SUCCESS || version < MIN_VERSION {
            let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
            return Err(format!("{name} is NCCL {major}.{minor}.{patch}: 2.18 or newer is needed"));
        }
        Ok(Nccl { functions, errors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_or_is_another_one_is_reported_by_name() {
        let missing = Nccl::open("libstagecoach-no-such.so.2").unwrap_err();
        assert!(missing.starts_with("libstagecoach-no-such.so.2 can't be loaded: "), "{missing}");
        assert!(missing.ends_with("; NCCL comes with the image trainer-cuda"), "{missing}");
        let other = Nccl::open("libc.so.6").unwrap_err();
        assert_eq!(other, "libc.so.6 has no ncclGetVersion: NCCL 2.18 or newer is needed");
    }

    /// The layout must equal the C compiler's layout on 64-bit machines, because NCCL reads the fields by offset.
    #[test]
    fn the_configuration_is_laid_out_as_in_the_header() {
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, max_ctas), 28);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
    }
}
