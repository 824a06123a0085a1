//! One binary for CPU and GPU: libtorch finds CUDA only if its CUDA library is opened before the first query.

mod driver;
mod module;

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

pub(crate) use driver::{CudaContext, CudaError, CudaEvent, CudaStream};
pub(crate) use module::{CudaFunction, CudaModule};

/// The number of usable GPUs; 0 if the library, the driver or a device is missing.
pub(crate) fn cuda_devices() -> usize {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        if !std::path::Path::new("/dev/nvidiactl").exists() {
            return None; // avoids mapping half a gigabyte of CUDA kernels on machines without a driver
        }
        // SAFETY: libtorch's own library; its initialisers register kernels and nothing else. It is never unloaded.
        unsafe { Library::open(Some("libtorch_cuda.so"), RTLD_LAZY | RTLD_GLOBAL) }
            .inspect_err(|error| {
                // the source has the loader's message; the error itself only names the call
                let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
                tracing::warn!("there is an NVIDIA driver, but libtorch's CUDA library can't be loaded: {why}");
            })
            .ok()
    });
    match library {
        Some(_) if tch::Cuda::is_available() => tch::Cuda::device_count().max(0) as usize,
        _ => 0,
    }
}
