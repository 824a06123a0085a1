//! NVRTC, NVIDIA's compiler as a library. At the start of a stage, NVRTC compiles the kernels into a cubin for exactly
//! the stage's GPU. NVRTC needs no driver.
//!
//! Source: the NVRTC user guide of CUDA 13.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use cudarc::nvrtc::{result, sys};
use libloading::os::unix::Library;

use crate::library::{LibraryError, check_functions, open as open_library};

/// The library of CUDA 13, the version of libtorch's own libraries.
const LIBRARY: &str = "libnvrtc.so.13";
/// The library that NVRTC opens by this name when it compiles.
const BUILTINS: &str = "libnvrtc-builtins.so.13.0";
/// The oldest major version.
const MIN_MAJOR: c_int = 13;

/// The functions of NVRTC that this module calls.
pub(crate) const FUNCTIONS: [&str; 10] = [
    "nvrtcVersion",
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
];

/// The reason that the kernels can't be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    #[error("{0}; NVRTC, which compiles the kernels, comes with the image trainer-cuda")]
    Missing(LibraryError),
    #[error("{0}: NVRTC 13.0 or newer is needed")]
    TooOld(LibraryError),
    #[error(
        "the loader finds NVRTC {version} by the name libnvrtc.so before it looks for {LIBRARY}: lay a link libnvrtc.so to {LIBRARY} into a \
         folder at the start of LD_LIBRARY_PATH"
    )]
    Shadowed { version: String },
    #[error("NVRTC {version} does not know this GPU's architecture {architecture}: a newer one is needed")]
    UnknownArchitecture { version: String, architecture: String },
    #[error("NVRTC can't load {BUILTINS}, which comes with it and has to be in the same folder")]
    NoBuiltins,
    #[error("NVRTC {version} does not compile the kernels for {architecture}: {log}")]
    Compilation { version: String, architecture: String, log: String },
    #[error("{call}: {code:?}")]
    Failed { call: &'static str, code: sys::nvrtcResult },
}

impl NvrtcError {
    /// The error of the function `call`.
    fn of(call: &'static str) -> impl FnOnce(result::NvrtcError) -> NvrtcError {
        move |result::NvrtcError(code)| NvrtcError::Failed { call, code }
    }
}

/// A file of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSource {
    /// The name by which other files include this file.
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

/// NVRTC by `cudarc`, which panics if the library or one of its functions is missing. `open` therefore looks for them
/// first.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    version: String,
    /// The library `BUILTINS`, open so that NVRTC finds it in any folder. NVRTC's own search does not include the
    /// folder of this program's libraries.
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Opens NVRTC by the loader's rules, or in a folder.
    ///
    /// # Errors
    /// If NVRTC is missing or too old.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Nvrtc, NvrtcError> {
        let in_folder = |name: &str| folder.map_or(name.to_owned(), |folder| folder.join(name).display().to_string());
        let name = in_folder(LIBRARY);
        let library = open_library(&name).map_err(NvrtcError::Missing)?.into();
        check_functions(&name, &library, &FUNCTIONS).map_err(NvrtcError::TooOld)?;
        // `cudarc` tries several names, one of which is the name of the open library
        // SAFETY: the library is there, and its initialisers only set it up.
        check_functions("libnvrtc.so", unsafe { sys::culib() }, &FUNCTIONS).map_err(NvrtcError::TooOld)?;
        // if the builtins are missing, NVRTC reports that on compilation
        let builtins = open_library(&in_folder(BUILTINS)).ok();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(NvrtcError::of("nvrtcVersion"))?;
        let version = format!("{major}.{minor}");
        match major >= MIN_MAJOR {
            true => Ok(Nvrtc { version, _builtins: builtins }),
            false => Err(NvrtcError::Shadowed { version }),
        }
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
    pub(crate) fn compile(&self, files: &[KernelSource], architecture: &str) -> Result<Compiled, NvrtcError> {
        let program = self.compiled(files, architecture)?;
        Ok(Compiled { cubin: program.cubin()?, log: program.log()? })
    }

    /// The intermediate code for an architecture such as `compute_90`.
    #[cfg(test)]
    pub(crate) fn ptx(&self, files: &[KernelSource], architecture: &str) -> Result<String, NvrtcError> {
        self.compiled(files, architecture)?.ptx()
    }

    fn compiled(&self, files: &[KernelSource], architecture: &str) -> Result<Program, NvrtcError> {
        use sys::nvrtcResult::{
            NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, NVRTC_ERROR_COMPILATION, NVRTC_ERROR_INVALID_OPTION,
        };
        let program = Program::new(files)?;
        // the log shows the registers and spills of each kernel
        let options = [&format!("--gpu-architecture={architecture}"), "--std=c++17", "--ptxas-options=-v"];
        // SAFETY: the program is not destroyed.
        let result = unsafe { result::compile_program(program.0, &options) };
        let (version, architecture) = (self.version.clone(), architecture.to_owned());
        match result.map_err(|result::NvrtcError(code)| code) {
            Ok(()) => Ok(program),
            // only the architecture can be invalid among these options
            Err(NVRTC_ERROR_INVALID_OPTION) => Err(NvrtcError::UnknownArchitecture { version, architecture }),
            Err(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) => Err(NvrtcError::NoBuiltins),
            Err(NVRTC_ERROR_COMPILATION) => {
                Err(NvrtcError::Compilation { version, architecture, log: program.log()?.trim().to_owned() })
            }
            Err(code) => Err(NvrtcError::Failed { call: "nvrtcCompileProgram", code }),
        }
    }
}

/// The C string of one of this program's own texts, which contain no null byte.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(files: &[KernelSource]) -> Result<Program, NvrtcError> {
        let kernels = files.iter().filter(|file| file.name.ends_with(".cu"));
        let main = c_string(&kernels.map(|file| format!("#include \"{}\"\n", file.name)).collect::<String>());
        let strings = |of: fn(&KernelSource) -> &str| files.iter().map(|file| c_string(of(file))).collect::<Vec<_>>();
        let (texts, names) = (strings(|file| file.text), strings(|file| file.name));
        let addresses = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (text_addresses, name_addresses) = (addresses(&texts), addresses(&names));
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle, and copies the strings, which end with null bytes; the count is theirs.
        let created = unsafe {
            let (count, texts, names) = (files.len() as c_int, text_addresses.as_ptr(), name_addresses.as_ptr());
            sys::nvrtcCreateProgram(&mut raw, main.as_ptr(), c"kernels.cu".as_ptr(), count, texts, names)
        };
        created.result().map_err(NvrtcError::of("nvrtcCreateProgram"))?;
        Ok(Program(raw))
    }

    fn log(&self) -> Result<String, NvrtcError> {
        // SAFETY: the program is not destroyed.
        Ok(text(&unsafe { result::get_program_log(self.0) }.map_err(NvrtcError::of("nvrtcGetProgramLog"))?))
    }

    #[cfg(test)]
    fn ptx(&self) -> Result<String, NvrtcError> {
        // SAFETY: the program is compiled, and not destroyed.
        Ok(text(&unsafe { result::get_ptx(self.0) }.map_err(NvrtcError::of("nvrtcGetPTX"))?))
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: writes one number; the program is not destroyed.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) }.result().map_err(NvrtcError::of("nvrtcGetCUBINSize"))?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: writes as many bytes as the size function has returned.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }
            .result()
            .map_err(NvrtcError::of("nvrtcGetCUBIN"))?;
        Ok(cubin)
    }
}

/// The text of a C string in a buffer.
fn text(buffer: &[c_char]) -> String {
    let bytes = buffer.iter().map(|&byte| byte as u8).collect::<Vec<_>>();
    CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default().into_owned()
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is not used again.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
