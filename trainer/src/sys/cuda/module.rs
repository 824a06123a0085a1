//! CUDA's driver API: compiled kernels, and their launches on the default stream, on which libtorch computes too. In a table of their
//! own, so that stages without kernels, such as those of the tests over a stand-in for the driver, need none of it.
//!
//! Source: the CUDA driver API reference.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::driver::{CudaContext, CudaError, Handle, LIBRARY};
use crate::sys::library::{LibraryError, c_functions};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSOR_COUNT: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
const CAPABILITY_MINOR: c_int = 76;

c_functions! {
    ModuleFunctions {
        device_get_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, c_int),
        load_data: "cuModuleLoadData" (*mut Handle, *const c_void),
        get_function: "cuModuleGetFunction" (*mut Handle, Handle, *const c_char),
        launch: "cuLaunchKernel" (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *const *mut c_void, *mut *mut c_void
        ),
    } returns c_int
}

fn functions() -> Result<&'static ModuleFunctions, CudaError> {
    static FUNCTIONS: OnceLock<Result<ModuleFunctions, LibraryError>> = OnceLock::new();
    Ok(FUNCTIONS.get_or_init(|| ModuleFunctions::open(LIBRARY)).as_ref().map_err(Clone::clone)?)
}

/// What kernels are compiled for and launched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceProperties {
    /// Compute capability: 9 and 0 on an H100.
    pub(crate) capability: (u32, u32),
    /// Streaming multiprocessors: how many blocks run at a time, or a multiple of it.
    pub(crate) multiprocessors: u32,
}

impl CudaContext {
    /// The properties of its device.
    pub(crate) fn properties(&self) -> Result<DeviceProperties, CudaError> {
        let functions = functions()?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one integer.
            let result = unsafe { (functions.device_get_attribute)(&mut value, attribute, self.device()) };
            self.check("cuDeviceGetAttribute", result).map(|()| value.max(0) as u32)
        };
        Ok(DeviceProperties {
            capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
            multiprocessors: attribute(MULTIPROCESSOR_COUNT)?,
        })
    }
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaFunction(Handle);

/// Compiled kernels on a GPU, as long as the process lives.
#[derive(Debug)]
pub(crate) struct CudaModule {
    context: CudaContext,
    functions: &'static ModuleFunctions,
    raw: Handle,
}

// SAFETY: the driver's functions may be called on any thread with a current context, which each call here makes sure of.
unsafe impl Send for CudaModule {}
// SAFETY: as above; nothing changes the module.
unsafe impl Sync for CudaModule {}
// SAFETY: a handle that the driver follows, on any thread.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}

impl CudaModule {
    /// Loads a cubin.
    ///
    /// # Errors
    /// If it is for another architecture, or the driver is older than what made it.
    pub(crate) fn load(context: CudaContext, cubin: &[u8]) -> Result<CudaModule, CudaError> {
        let functions = functions()?;
        context.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle, and copies what it reads; a cubin is an ELF file, which says where it ends.
        let loaded = unsafe { (functions.load_data)(&mut raw, cubin.as_ptr().cast()) };
        context.check("cuModuleLoadData", loaded)?;
        Ok(CudaModule { context, functions, raw })
    }

    /// The kernel of this name.
    pub(crate) fn function(&self, name: &CStr) -> Result<CudaFunction, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle; the module is loaded and the name ends with a null byte.
        let found = unsafe { (self.functions.get_function)(&mut raw, self.raw, name.as_ptr()) };
        self.context.check("cuModuleGetFunction", found)?;
        Ok(CudaFunction(raw))
    }

    /// Gives a kernel to the default stream: it runs behind all that libtorch was given so far, and this does not wait for it. `blocks`
    /// in two dimensions; `arguments` are addresses, and what they point to is copied before this returns.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in number and type, and what they point to on the device stays until the kernel is done.
    pub(crate) unsafe fn launch(
        &self,
        function: CudaFunction,
        (blocks, threads): ((u32, u32), u32),
        arguments: &[*mut c_void],
    ) -> Result<(), CudaError> {
        // of another device's context libtorch may have left this thread with
        self.context.make_current()?;
        let (stream, none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the function is the module's; the arguments are the caller's promise.
        let launched = unsafe {
            let launch = self.functions.launch;
            launch(function.0, blocks.0, blocks.1, 1, threads, 1, 1, 0, stream, arguments.as_ptr(), none)
        };
        self.context.check("cuLaunchKernel", launched)
    }
}
