//! Compiled kernels, and their launches on the default stream, on which libtorch computes as well.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{self, result};
use cudarc::nvrtc::Ptx;

use super::driver::{CudaContext, CudaError};

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct CudaFunction(driver::CudaFunction);

/// Compiled kernels on a GPU.
#[derive(Debug)]
pub struct CudaModule {
    context: CudaContext,
    module: Arc<driver::CudaModule>,
}

impl CudaModule {
    /// Loads a cubin.
    ///
    /// # Errors
    /// If the cubin is for another architecture, or the driver is older than the compiler of the cubin.
    pub fn load(context: CudaContext, cubin: Vec<u8>) -> Result<CudaModule, CudaError> {
        let loaded = context.current()?.load_module(Ptx::from_binary(cubin));
        Ok(CudaModule { context, module: loaded.map_err(CudaError::of("cuModuleLoadData"))? })
    }

    /// Returns the kernel of this name.
    pub fn function(&self, name: &str) -> Result<CudaFunction, CudaError> {
        let function = self.module.load_function(name).map_err(CudaError::of("cuModuleGetFunction"))?;
        Ok(CudaFunction(function))
    }

    /// Queues a kernel on the default stream, after the work that libtorch has queued so far. The method does not wait
    /// for the kernel. `blocks` is the number of blocks in two dimensions, and `threads` is the number of threads of a
    /// block. `arguments` are the addresses of the kernel's arguments, which are copied before this method returns.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in number and type. The device memory to which they point stays allocated
    /// until the kernel is done.
    pub unsafe fn launch(
        &self,
        function: &CudaFunction,
        (blocks, threads): ((u32, u32), u32),
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        self.context.current()?;
        let (grid, block) = ((blocks.0, blocks.1, 1), (threads, 1, 1));
        // SAFETY: the function is the module's; the caller guarantees the arguments.
        unsafe { result::launch_kernel(function.0.cu_function(), grid, block, 0, ptr::null_mut(), arguments) }
            .map_err(CudaError::of("cuLaunchKernel"))
    }
}
