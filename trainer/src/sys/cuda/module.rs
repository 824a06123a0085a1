//! CUDA's driver API: compiled kernels, and their launches on the default stream, on which libtorch computes as well.
//! The functions have their own table, so that stages without kernels, such as stages of tests with a stand-in for the
//! driver, do not need them.
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

/// The device properties that determine the compilation and the launches of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceProperties {
    /// Compute capability: 9 and 0 on an H100.
    pub(crate) capability: (u32, u32),
    /// Streaming multiprocessors: the number of concurrent blocks is a multiple of it.
    pub(crate) multiprocessors: u32,
}

impl CudaContext {
    /// The properties of the context's device.
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

/// Compiled kernels on a GPU, loaded until the process ends.
#[derive(Debug)]
pub(crate) struct CudaModule {
    context: CudaContext,
    functions: &'static ModuleFunctions,
    raw: Handle,
}

// SAFETY: the driver's functions may be called on any thread with a current context, and each call here makes its
// context current.
unsafe impl Send for CudaModule {}
// SAFETY: as above; nothing changes the module.
unsafe impl Sync for CudaModule {}
// SAFETY: a handle that the driver accepts on any thread.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}

impl CudaModule {
    /// Loads a cubin.
    ///
    /// # Errors
    /// If it is for another architecture, or the driver is older than the compiler that made it.
    pub(crate) fn load(context: CudaContext, cubin: &[u8]) -> Result<CudaModule, CudaError> {
        let functions = functions()?;
        context.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle, and copies the cubin, an ELF file that contains its own length.
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

    /// Queues a kernel on the default stream, after the work that libtorch has queued so far, without waiting for it.
    /// `blocks` has two dimensions. `arguments` are addresses, whose contents are copied before this returns.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in number and type, and the device memory to which they point stays until
    /// the kernel is done.
    pub(crate) unsafe fn launch(
        &self,
        function: CudaFunction,
        (blocks, threads): ((u32, u32), u32),
        arguments: &[*mut c_void],
    ) -> Result<(), CudaError> {
        // libtorch may have made another device's context current on this thread
        self.context.make_current()?;
        let (stream, none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the function is the module's; the caller guarantees the arguments.
        let launched = unsafe {
            let launch = self.functions.launch;
            launch(function.0, blocks.0, blocks.1, 1, threads, 1, 1, 0, stream, arguments.as_ptr(), none)
        };
        self.context.check("cuLaunchKernel", launched)
    }
}
