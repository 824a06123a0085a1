//! NVRTC, NVIDIA's compiler as a library. At the start of a stage, NVRTC compiles the kernels into a cubin for the
//! architecture of the stage's GPU. NVRTC needs no driver.
//!
//! Source: the NVRTC user guide of CUDA 13.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use cudarc::nvrtc::{result, sys};
use libloading::os::unix::Library;

use crate::library::{LibraryError, check_functions, open as open_library};

/// The library of NVRTC in CUDA 13, which is the CUDA version of libtorch's libraries.
const LIBRARY: &str = "libnvrtc.so.13";
/// The library that NVRTC opens by this name during compilation.
const BUILTINS: &str = "libnvrtc-builtins.so.13.0";
/// The oldest supported major version of NVRTC.
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
        "the loader finds NVRTC {version} as libnvrtc.so before it tries {LIBRARY}: create a symbolic link named \
         libnvrtc.so to {LIBRARY} in the first folder of LD_LIBRARY_PATH"
    )]
    Shadowed { version: String },
    #[error("NVRTC {version} does not know this GPU's architecture {architecture}: install a newer NVRTC")]
    UnknownArchitecture { version: String, architecture: String },
    #[error("NVRTC can't load {BUILTINS}, a part of NVRTC: put it into the folder of NVRTC's library")]
    NoBuiltins,
    #[error("NVRTC {version} does not compile the kernels for {architecture}: {log}")]
    Compilation { version: String, architecture: String, log: String },
    #[error("{call}: {code:?}")]
    Failed { call: &'static str, code: sys::nvrtcResult },
}

impl NvrtcError {
    /// Returns the error of NVRTC's function `call`.
    fn of(call: &'static str) -> impl FnOnce(result::NvrtcError) -> NvrtcError {
        move |result::NvrtcError(code)| NvrtcError::Failed { call, code }
    }
}

/// A source file of a program.
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
    /// The output of the compiler, with the report of the assembler (`ptxas -v`).
    pub(crate) log: String,
}

/// NVRTC through `cudarc`. `cudarc` panics if the library or one of its functions is missing, so `open` checks for them
/// first.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    version: String,
    /// The library `BUILTINS`; `None` if it can't be opened. NVRTC does not search the folder of this program's
    /// libraries, so this program opens the library from that folder. When NVRTC opens the library by its name, the
    /// loader returns the open library.
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Opens NVRTC in `folder` or, without a folder, by the loader's rules.
    ///
    /// # Errors
    /// If NVRTC is missing or too old.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Nvrtc, NvrtcError> {
        let in_folder = |name: &str| folder.map_or(name.to_owned(), |folder| folder.join(name).display().to_string());
        let name = in_folder(LIBRARY);
        let library = open_library(&name).map_err(NvrtcError::Missing)?.into();
        check_functions(&name, &library, &FUNCTIONS).map_err(NvrtcError::TooOld)?;
        // `cudarc` tries several names. One of them is `LIBRARY`, which is open, so `cudarc` finds a library. A name
        // that `cudarc` tries earlier may belong to another version of NVRTC.
        // SAFETY: the library exists, and its initialisers only set it up.
        check_functions("libnvrtc.so", unsafe { sys::culib() }, &FUNCTIONS).map_err(NvrtcError::TooOld)?;
        // a failure is ignored here, because NVRTC reports missing builtins when it compiles
        let builtins = open_library(&in_folder(BUILTINS)).ok();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two integers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(NvrtcError::of("nvrtcVersion"))?;
        let version = format!("{major}.{minor}");
        match major >= MIN_MAJOR {
            true => Ok(Nvrtc { version, _builtins: builtins }),
            false => Err(NvrtcError::Shadowed { version }),
        }
    }

    /// Returns NVRTC's version, such as `13.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Compiles `files`, which may include each other, for an architecture such as `sm_90`. One cubin holds the kernels
    /// of all files.
    ///
    /// # Errors
    /// If NVRTC does not support the architecture, can't load its builtins, or finds an error in the source.
    pub(crate) fn compile(&self, files: &[KernelSource], architecture: &str) -> Result<Compiled, NvrtcError> {
        let program = self.compiled(files, architecture)?;
        Ok(Compiled { cubin: program.cubin()?, log: program.log()? })
    }

    /// Returns the intermediate code (PTX) for an architecture such as `compute_90`.
    #[cfg(test)]
    pub(crate) fn ptx(&self, files: &[KernelSource], architecture: &str) -> Result<String, NvrtcError> {
        self.compiled(files, architecture)?.ptx()
    }

    fn compiled(&self, files: &[KernelSource], architecture: &str) -> Result<Program, NvrtcError> {
        use sys::nvrtcResult::{
            NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, NVRTC_ERROR_COMPILATION, NVRTC_ERROR_INVALID_OPTION,
        };
        let program = Program::new(files)?;
        // with `-v`, the log shows the registers and spills of each kernel
        let options = [&format!("--gpu-architecture={architecture}"), "--std=c++17", "--ptxas-options=-v"];
        // SAFETY: the program is not destroyed.
        let result = unsafe { result::compile_program(program.0, &options) };
        let (version, architecture) = (self.version.clone(), architecture.to_owned());
        match result.map_err(|result::NvrtcError(code)| code) {
            Ok(()) => Ok(program),
            // among these options, only the architecture can be invalid
            Err(NVRTC_ERROR_INVALID_OPTION) => Err(NvrtcError::UnknownArchitecture { version, architecture }),
            Err(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) => Err(NvrtcError::NoBuiltins),
            Err(NVRTC_ERROR_COMPILATION) => {
                Err(NvrtcError::Compilation { version, architecture, log: program.log()?.trim().to_owned() })
            }
            Err(code) => Err(NvrtcError::Failed { call: "nvrtcCompileProgram", code }),
        }
    }
}

/// Converts a text to a C string. All texts are constants of this program or are derived from them, and contain no null
/// byte.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// A program in NVRTC's sense: sources that are compiled together.
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
        // SAFETY: the call writes one handle, and copies `count` strings of each array, which end with null bytes.
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
        // SAFETY: the call writes one number, and the program is not destroyed.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) }.result().map_err(NvrtcError::of("nvrtcGetCUBINSize"))?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the call writes as many bytes as the size function has returned.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }
            .result()
            .map_err(NvrtcError::of("nvrtcGetCUBIN"))?;
        Ok(cubin)
    }
}

/// Returns the text of a C string in a buffer.
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
