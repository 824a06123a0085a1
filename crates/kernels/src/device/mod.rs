//! Loads CUDA at run time, so that one binary serves CPU and GPU. libtorch finds CUDA only if its library
//! `libtorch_cuda.so` is opened before the first query.

mod clock;
mod driver;
mod host_tensor;
mod module;
mod stream;

use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

pub use clock::{DeviceClock, Timestamp};
pub use driver::{CudaContext, CudaError};
pub use host_tensor::HostTensor;
pub use module::{CudaFunction, CudaModule};
pub use stream::{CudaEvent, CudaStream};

use crate::c_functions;
use crate::library::loader_message;

/// The CUDA version of the oldest driver that libtorch's CUDA library supports, in the encoding of
/// `cuDriverGetVersion`.
const MIN_DRIVER_VERSION: i32 = 13_000;

/// The reason that libtorch has no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// The operating system has no driver, or the container has none of the driver's devices.
    #[error("there is no NVIDIA driver here: /dev/nvidiactl does not exist")]
    NoDriver,
    /// The image lacks libtorch's CUDA library, or one of its dependencies.
    #[error("libtorch's CUDA library, which the image trainer-cuda contains, can't be loaded: {0}")]
    NoLibrary(String),
    /// The driver's library failed.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// The driver is older than libtorch's CUDA library requires.
    #[error(
        "the NVIDIA driver is for CUDA {}.{}, and libtorch needs one for {}.{} or newer: update the driver of the node",
        found / 1000, found % 1000 / 10, MIN_DRIVER_VERSION / 1000, MIN_DRIVER_VERSION % 1000 / 10
    )]
    OldDriver {
        /// The CUDA version that the driver supports, such as 12080 for 12.8.
        found: i32,
    },
    /// There is a driver, but no device that this process may use.
    #[error(
        "the NVIDIA driver shows this process no device: request nvidia.com/gpu for the pod, and check that \
         CUDA_VISIBLE_DEVICES is not empty"
    )]
    NoDevice,
    /// libtorch finds no device although the driver has some.
    #[error("libtorch finds no GPU, although the NVIDIA driver has {0}")]
    Unknown(i32),
}

/// Returns the number of usable GPUs, at least one.
///
/// # Errors
/// If there is no usable GPU. The error gives the reason.
pub fn cuda_devices() -> Result<usize, NoGpu> {
    static LIBRARY: OnceLock<Result<Library, NoGpu>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        if !std::path::Path::new("/dev/nvidiactl").exists() {
            return Err(NoGpu::NoDriver); // avoids mapping half a gigabyte of CUDA kernels on machines without a driver
        }
        // SAFETY: this is a library of libtorch; its initialisers register kernels and do nothing else. The library is
        // never unloaded.
        unsafe { Library::open(Some("libtorch_cuda.so"), RTLD_LAZY | RTLD_GLOBAL) }
            .map_err(|error| NoGpu::NoLibrary(loader_message(&error)))
    });
    library.as_ref().map_err(Clone::clone)?;
    match tch::Cuda::is_available().then(tch::Cuda::device_count) {
        Some(count @ 1..) => Ok(count as usize),
        _ => Err(why_none(driver::version_and_devices())),
    }
}

/// Returns the number of GPUs that the driver shows this process; 0 if there is no driver. Unlike [`cuda_devices`],
/// this function opens no library of libtorch.
pub fn driver_devices() -> usize {
    driver::version_and_devices().map_or(0, |(_, count)| count.max(0) as usize)
}

/// Returns the reason that libtorch finds no device, given the driver's version and number of devices.
fn why_none(driver: Result<(i32, i32), CudaError>) -> NoGpu {
    match driver {
        Err(CudaError::NoDevices) => NoGpu::NoDevice,
        Err(error) => error.into(),
        Ok((found, _)) if found < MIN_DRIVER_VERSION => NoGpu::OldDriver { found },
        Ok((_, ..=0)) => NoGpu::NoDevice,
        Ok((_, count)) => NoGpu::Unknown(count),
    }
}

/// Returns the driver's name for the model of a GPU; empty if the driver does not report it.
pub fn gpu_model(index: usize) -> String {
    CudaContext::of_device(index).and_then(|context| context.device_name()).unwrap_or_default()
}

/// Returns the number of a GPU's multiprocessors, which distinguishes a MIG partition from a whole GPU; 0 if the driver
/// does not report the number.
pub fn gpu_multiprocessors(index: usize) -> u32 {
    let properties = CudaContext::of_device(index).and_then(|context| context.properties());
    properties.map_or(0, |properties| properties.multiprocessors)
}

c_functions! {
    CublasFunctions {
        property: "cublasGetProperty" (c_int, *mut c_int),
    } returns c_int
}

/// Returns the version of cuBLAS, such as `13.1.0`; empty without the library. Versions may choose different
/// algorithms, which change the bits of the results.
pub fn cublas_version() -> String {
    let Ok(cublas) = CublasFunctions::open("libcublas.so.13") else { return String::new() };
    // the properties 0, 1 and 2 are the major, minor and patch versions
    let parts = [0, 1, 2].map(|property| {
        let mut value = 0;
        // SAFETY: the call writes one integer.
        unsafe { (cublas.property)(property, &mut value) };
        value.to_string()
    });
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_is_no_gpu_is_one_sentence() {
        let why = |driver| why_none(driver).to_string();
        assert_eq!(
            why(Ok((12_080, 1))),
            "the NVIDIA driver is for CUDA 12.8, and libtorch needs one for 13.0 or newer: update the driver of the \
             node"
        );
        assert!(why(Ok((13_000, 0))).starts_with("the NVIDIA driver shows this process no device"));
        assert_eq!(why(Ok((13_010, 2))), "libtorch finds no GPU, although the NVIDIA driver has 2");
        assert_eq!(why(Err(CudaError::NoDevices)), why(Ok((13_000, 0))));
        let failed = CudaError::Failed { call: "cuInit", why: "system has unsupported display driver".into() };
        assert_eq!(why(Err(failed)), "cuInit: system has unsupported display driver");
    }
}
