//! NVRTC, NVIDIA's compiler as a library: makes the kernels into a cubin when a stage starts, for the very GPU that it has. It needs no
//! driver.
//!
//! Source: the NVRTC user guide of CUDA 13.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::Library;

use crate::sys::{LibraryError, c_functions, open_library};

/// Of CUDA 13, which libtorch's own libraries are of.
const LIBRARY: &str = "libnvrtc.so.13";
/// What NVRTC opens by this name when it compiles.
const BUILTINS: &str = "libnvrtc-builtins.so.13.0";

const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_INVALID_OPTION`: of the options that are given only the architecture can be one.
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

/// Why there are no kernels.
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
    /// The name by which others include it.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// A program that is compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) cubin: Vec<u8>,
    /// What the compiler and, with its option `-v`, the assembler say.
    pub(crate) log: String,
}

/// NVRTC.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    functions: NvrtcFunctions,
    version: String,
    /// Kept open, so that NVRTC finds it wherever it is: its own search does not include the folder of our libraries.
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Opens it by the loader's rules, or in a folder.
    ///
    /// # Errors
    /// If it is missing or too old.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Nvrtc, NvrtcError> {
        let in_folder = |name: &str| folder.map_or(name.to_owned(), |folder| folder.join(name).display().to_string());
        let functions = NvrtcFunctions::open(&in_folder(LIBRARY)).map_err(|error| match error {
            LibraryError::Missing { .. } => NvrtcError::Missing(error),
            LibraryError::TooOld { .. } => NvrtcError::TooOld(error),
        })?;
        // if it is not there, NVRTC says so when it compiles
        let builtins = open_library(&in_folder(BUILTINS)).ok();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        check("nvrtcVersion", unsafe { (functions.version)(&mut major, &mut minor) })?;
        Ok(Nvrtc { functions, version: format!("{major}.{minor}"), _builtins: builtins })
    }

    /// Its version, such as `13.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Compiles `files`, which may include each other, for an architecture such as `sm_90`; all that are kernels is in one cubin.
    ///
    /// # Errors
    /// If NVRTC does not know the architecture, lacks a part of itself, or finds an error in the source.
    pub(crate) fn compile(&self, files: &[SourceFile], architecture: &str) -> Result<Compiled, NvrtcError> {
        let program = Program::new(&self.functions, files)?;
        let options = [
            c_string(&format!("--gpu-architecture={architecture}")),
            c_string("--std=c++17"),
            // registers and spills of each kernel, in the log
            c_string("--ptxas-options=-v"),
        ];
        let options = options.each_ref().map(|option| option.as_ptr());
        // SAFETY: as many options as it is told, which end with null bytes.
        let result = unsafe { (self.functions.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let (version, architecture) = (self.version.clone(), architecture.to_owned());
        match result {
            SUCCESS => Ok(Compiled { cubin: program.cubin()?, log: program.log()? }),
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

/// Of texts that are our own, in which there is no null byte.
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
        // SAFETY: writes one handle, and copies the strings, which end with null bytes: as many as it is told.
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
        // SAFETY: writes as many bytes as it has said.
        check(call, unsafe { write(self.raw, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: a program that is not used again.
        unsafe { (self.functions.destroy)(&mut self.raw) };
    }
}
