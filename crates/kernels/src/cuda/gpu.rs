//! Loads and launches the kernels on the GPU of this process.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use tch::{Device, Kind, Tensor};

use super::nvrtc::{Nvrtc, NvrtcError};
use super::{Grid, KERNELS, Launcher, SOURCES};
use crate::device::{CudaContext, CudaError, CudaFunction, CudaModule};
use crate::{ffi, upload};

/// The number of blocks per multiprocessor. With 256 threads per block, a multiprocessor then has enough threads to
/// hide the latency of memory.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 16;

/// The reason that the kernels can't be loaded on a GPU.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A GPU on which all kernels are loaded.
#[derive(Debug)]
pub(crate) struct Gpu {
    index: usize,
    module: CudaModule,
    functions: HashMap<&'static str, CudaFunction>,
    max_blocks: u32,
    /// The version of NVRTC. The results of kernels that another version compiled may differ in their bits.
    nvrtc_version: String,
    /// The compute capability: major and minor version.
    capability: (u32, u32),
}

/// The GPUs with loaded kernels. A process computes on one GPU at a time. A spare (a waiting process that replaces a
/// lost stage) can change its GPU when it replaces a stage that uses another one.
static GPUS: RwLock<Vec<&'static Gpu>> = RwLock::new(Vec::new());

fn find(index: usize) -> Option<&'static Gpu> {
    GPUS.read().unwrap_or_else(PoisonError::into_inner).iter().find(|gpu| gpu.index == index).copied()
}

/// Compiles the kernels and loads them on GPU `index`, unless they are loaded already. Compilation takes a second or
/// two.
///
/// # Errors
/// If NVRTC is missing, does not support this GPU or can't compile the kernels, or the driver can't load them.
pub fn load(index: usize) -> Result<(), KernelError> {
    if find(index).is_none() {
        ffi::pin_gpu_products();
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu::new(index)?));
        GPUS.write().unwrap_or_else(PoisonError::into_inner).push(gpu);
    }
    Ok(())
}

/// Returns the version of the compiler that compiled the kernels of GPU `index`; `None` if no kernels are loaded.
pub fn compiler_version(index: usize) -> Option<&'static str> {
    find(index).map(|gpu| gpu.nvrtc_version.as_str())
}

/// Returns GPU `index`, on which [`load`] has loaded the kernels.
///
/// # Panics
/// If the kernels are not loaded. That is a defect, because all code that chooses a device calls [`load`].
#[allow(clippy::expect_used, reason = "a defect of this program")]
pub(crate) fn loaded(index: usize) -> &'static Gpu {
    find(index).expect("kernels are loaded before a GPU computes")
}

impl Gpu {
    fn new(index: usize) -> Result<Gpu, KernelError> {
        let context = CudaContext::of_device(index)?;
        let properties = context.properties()?;
        let nvrtc = Nvrtc::open(None)?;
        let (major, minor) = properties.capability;
        let compiled = nvrtc.compile(&SOURCES, &format!("sm_{major}{minor}"))?;
        tracing::debug!("NVRTC {} has compiled the kernels: {}", nvrtc.version(), compiled.log);
        let module = CudaModule::load(context, compiled.cubin)?;
        let function = |name: &'static str| Ok::<_, CudaError>((name, module.function(name)?));
        let functions = KERNELS.into_iter().map(function).collect::<Result<_, _>>()?;
        Ok(Gpu {
            index,
            module,
            functions,
            max_blocks: (properties.multiprocessors * BLOCKS_PER_MULTIPROCESSOR).max(1),
            nvrtc_version: nvrtc.version().to_owned(),
            capability: properties.capability,
        })
    }

    /// Whether libtorch's flash attention runs on this GPU, which requires an Ampere GPU or a newer one.
    pub(crate) fn has_flash_attention(&self) -> bool {
        self.capability >= (8, 0)
    }
}

impl Launcher for Gpu {
    fn device(&self) -> Device {
        Device::Cuda(self.index)
    }

    fn max_blocks(&self) -> u32 {
        self.max_blocks
    }

    fn empty(&self, size: &[i64], kind: Kind) -> Tensor {
        Tensor::empty(size, (kind, self.device()))
    }

    fn upload(&self, table: &[i64]) -> Tensor {
        upload(&Tensor::from_slice(table), self.device())
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "a failing operation panics, as libtorch's do")]
    unsafe fn launch(&self, kernel: &str, Grid { x, y, threads }: Grid, arguments: &mut [*mut c_void]) {
        let function = &self.functions[kernel];
        // SAFETY: the caller upholds the contract; libtorch reuses freed memory only for later work on the same stream.
        if let Err(error) = unsafe { self.module.launch(function, ((x, y), threads), arguments) } {
            panic!("the launch of the kernel {kernel} failed: {error}");
        }
    }
}
