//! NVRTC, NVIDIA's compiler as a library. When a stage starts, it compiles the kernels into a cubin for exactly the
//! stage's GPU. It needs no driver.
//!
//! Source: the NVRTC user guide of CUDA 13.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::Library;

use crate::sys::{LibraryError, c_functions, open_library};

/// The library of CUDA 13, the version of libtorch's own libraries.
const LIBRARY: &str = "libnvrtc.so.13";
/// The library that NVRTC opens by this name when it compiles.
const BUILTINS: &str = "libnvrtc-builtins.so.13.0";

const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_INVALID_OPTION`: only the architecture can be invalid among the options that this module passes.
const INVALID_OPTION: c_int = 5;
/// `NVRTC_ERROR_COMPILATION`.
const COMPILATION: c_int = 6;
/// `NVRTC_ERROR_BUILTIN_OPERATION_FAILURE`.
const NO_BUILTINS: c_int = 7;

/// `nvrtcProgram`.
type RawProgram = *mut c_void;

c_functions! {
    NvrtcFunctions {
        version: "nvrtcVersion" (*mut c_int, *mut c_int),
        create: "nvrtcCreateProgram" (
            *mut RawProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ),
        compile: "nvrtcCompileProgram" (RawProgram, c_int, *const *const c_char),
        log_size: "nvrtcGetProgramLogSize" (RawProgram, *mut usize),
        log: "nvrtcGetProgramLog" (RawProgram, *mut c_char),
        cubin_size: "nvrtcGetCUBINSize" (RawProgram, *mut usize),
        cubin: "nvrtcGetCUBIN" (RawProgram, *mut c_char),
        destroy: "nvrtcDestroyProgram" (*mut RawProgram),
    } returns c_int
}

#[cfg(test)]
c_functions! {
    PtxFunctions {
        size: "nvrtcGetPTXSize" (RawProgram, *mut usize),
        ptx: "nvrtcGetPTX" (RawProgram, *mut c_char),
    } returns c_int
}

/// The reason that there are no kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NvrtcError {
    #[error("{0}; NVRTC, which compiles the kernels, comes with the image trainer-cuda")]
    Missing(LibraryError),
    #[error("{0}: NVRTC 13.0 or newer is needed")]
    TooOld(LibraryError),
    #[error("NVRTC {version} does not know this GPU's architecture {architecture}: a newer one is needed")]
    UnknownArchitecture { version: String, architecture: String },
    #[error("NVRTC can't load {BUILTINS}, which comes with it and has to be in the same folder")]
    NoBuiltins,
    #[error("NVRTC {version} does not compile the kernels for {architecture}: {log}")]
    Compilation { version: String, architecture: String, log: String },
    #[error("{call}: error {code} of NVRTC")]
    Failed { call: &'static str, code: c_int },
}

/// A file of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceFile {
    /// The name by which other files include it.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// A compiled program.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) cubin: Vec<u8>,
    /// The output of the compiler and, with its option `-v`, of the assembler.
    pub(crate) log: String,
}

/// NVRTC.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    functions: NvrtcFunctions,
    version: String,
    /// Kept open, so that NVRTC finds the library in any folder: NVRTC's own search does not include the folder of this
    /// program's libraries.
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Opens NVRTC by the loader's rules, or in a folder.
    ///
    /// # Errors
    /// If it is missing or too old.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Nvrtc, NvrtcError> {
        let in_folder = |name: &str| folder.map_or(name.to_owned(), |folder| folder.join(name).display().to_string());
        let functions = NvrtcFunctions::open(&in_folder(LIBRARY)).map_err(|error| match error {
            LibraryError::Missing { .. } => NvrtcError::Missing(error),
            LibraryError::TooOld { .. } => NvrtcError::TooOld(error),
        })?;
        // if the library is missing, NVRTC reports it on compilation
        let builtins = open_library(&in_folder(BUILTINS)).ok();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        check("nvrtcVersion", unsafe { (functions.version)(&mut major, &mut minor) })?;
        Ok(Nvrtc { functions, version: format!("{major}.{minor}"), _builtins: builtins })
    }

    /// NVRTC's version, such as `13.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Compiles `files`, which may include each other, for an architecture such as `sm_90`. One cubin holds the kernels
    /// of all files.
    ///
    /// # Errors
    /// If NVRTC does not know the architecture, lacks a part of itself, or finds an error in the source.
    pub(crate) fn compile(&self, files: &[SourceFile], architecture: &str) -> Result<Compiled, NvrtcError> {
        let program = self.compiled(files, architecture)?;
        Ok(Compiled { cubin: program.cubin()?, log: program.log()? })
    }

    /// The intermediate code for an architecture such as `compute_90`, by the library in this folder.
    #[cfg(test)]
    pub(crate) fn ptx(&self, folder: &Path, files: &[SourceFile], architecture: &str) -> Result<String, NvrtcError> {
        let program = self.compiled(files, architecture)?;
        let functions = PtxFunctions::open(&folder.join(LIBRARY).display().to_string()).map_err(NvrtcError::TooOld)?;
        let bytes = program.read("nvrtcGetPTX", functions.size, functions.ptx)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn compiled(&self, files: &[SourceFile], architecture: &str) -> Result<Program<'_>, NvrtcError> {
        let program = Program::new(&self.functions, files)?;
        let options = [
            c_string(&format!("--gpu-architecture={architecture}")),
            c_string("--std=c++17"),
            // the log shows the registers and spills of each kernel
            c_string("--ptxas-options=-v"),
        ];
        let options = options.each_ref().map(|option| option.as_ptr());
        // SAFETY: the count is that of the options, which end with null bytes.
        let result = unsafe { (self.functions.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let (version, architecture) = (self.version.clone(), architecture.to_owned());
        match result {
            SUCCESS => Ok(program),
            INVALID_OPTION => Err(NvrtcError::UnknownArchitecture { version, architecture }),
            NO_BUILTINS => Err(NvrtcError::NoBuiltins),
            COMPILATION => {
                Err(NvrtcError::Compilation { version, architecture, log: program.log()?.trim().to_owned() })
            }
            code => Err(NvrtcError::Failed { call: "nvrtcCompileProgram", code }),
        }
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), NvrtcError> {
    if code == SUCCESS { Ok(()) } else { Err(NvrtcError::Failed { call, code }) }
}

/// The C string of one of this program's own texts, which contain no null byte.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// A program of NVRTC.
struct Program<'a> {
    functions: &'a NvrtcFunctions,
    raw: RawProgram,
}

impl Program<'_> {
    fn new<'a>(functions: &'a NvrtcFunctions, files: &[SourceFile]) -> Result<Program<'a>, NvrtcError> {
        let kernels = files.iter().filter(|file| file.name.ends_with(".cu"));
        let main = c_string(&kernels.map(|file| format!("#include \"{}\"\n", file.name)).collect::<String>());
        let strings = |of: fn(&SourceFile) -> &str| files.iter().map(|file| c_string(of(file))).collect::<Vec<_>>();
        let (texts, names) = (strings(|file| file.text), strings(|file| file.name));
        let addresses = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (text_addresses, name_addresses) = (addresses(&texts), addresses(&names));
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle, and copies the strings, which end with null bytes; the count is theirs.
        check("nvrtcCreateProgram", unsafe {
            let (count, texts, names) = (files.len() as c_int, text_addresses.as_ptr(), name_addresses.as_ptr());
            (functions.create)(&mut raw, main.as_ptr(), c"kernels.cu".as_ptr(), count, texts, names)
        })?;
        Ok(Program { functions, raw })
    }

    fn log(&self) -> Result<String, NvrtcError> {
        let bytes = self.read("nvrtcGetProgramLog", self.functions.log_size, self.functions.log)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        self.read("nvrtcGetCUBIN", self.functions.cubin_size, self.functions.cubin)
    }

    fn read(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
        write: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: writes one number; the program is not destroyed.
        check(call, unsafe { size(self.raw, &mut bytes) })?;
        let mut read = vec![0u8; bytes];
        // SAFETY: writes as many bytes as the size function has returned.
        check(call, unsafe { write(self.raw, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is not used again.
        unsafe { (self.functions.destroy)(&mut self.raw) };
    }
}
