//! The CUDA driver through `cudarc`: its library, its errors, and the context of a device.
//!
//! `cudarc` panics if the library or one of its functions is missing, so this module checks for them first.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{CUdevice_attribute, CUpointer_attribute};
use cudarc::driver::{self, DriverError, result, sys};
use tch::Tensor;

use crate::library::{LibraryError, check_functions, open};

/// The driver's library, which is installed with the driver, not with CUDA.
const LIBRARY: &str = "libcuda.so.1";

/// The functions of the driver that `cudarc` calls for this program. The tests' stand-in for the driver (`tests/nccl`)
/// has exactly these functions, and a test compares the two lists.
const FUNCTIONS: [&str; 29] = [
    "cuInit",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorString",
    "cuLaunchKernel",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The reason that the driver can't be used, or the driver's error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver is missing or too old.
    #[error("there is no usable NVIDIA driver: {0}")]
    NoDriver(#[from] LibraryError),
    /// The driver has no device with this number.
    #[error("the NVIDIA driver has {count} devices, but device {index} was requested")]
    NoDevice {
        /// The device's number, from 0.
        index: usize,
        /// The number of devices.
        count: usize,
    },
    /// The driver shows this process no device.
    #[error("the NVIDIA driver shows this process no device")]
    NoDevices,
    /// Another process has exclusive use of the device, or the device's compute mode prohibits use.
    #[error(
        "the GPU is not available: another process uses it exclusively (compute mode EXCLUSIVE_PROCESS), or its \
         compute mode is PROHIBITED: end that process, or run nvidia-smi -c DEFAULT"
    )]
    Busy,
    /// A call failed.
    #[error("{call}: {why}")]
    Failed {
        /// The driver's function.
        call: &'static str,
        /// The driver's message.
        why: String,
    },
}

impl CudaError {
    /// Returns the error of the driver's function `call`.
    pub(super) fn of(call: &'static str) -> impl FnOnce(DriverError) -> CudaError {
        move |error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaError::NoDevices,
            sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => CudaError::Busy,
            code => {
                let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
                CudaError::Failed { call, why: text.unwrap_or_else(|_| format!("error {}", code as u32)) }
            }
        }
    }
}

/// Opens the driver, once per process.
fn open_driver() -> Result<(), CudaError> {
    static OPENED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        // in contrast to `cudarc`, `open` returns an error with the loader's reason; the library stays open until
        // `cudarc` has opened it too
        let _library = open(LIBRARY)?;
        // SAFETY: the library exists, and its initialisers only set it up.
        check_functions(LIBRARY, unsafe { sys::culib() }, &FUNCTIONS)?;
        result::init().map_err(CudaError::of("cuInit"))
    });
    opened.clone()
}

/// Returns the CUDA version that the driver supports, such as 13000 for 13.0, and the number of devices.
///
/// # Errors
/// If there is no driver.
pub(super) fn version_and_devices() -> Result<(c_int, c_int), CudaError> {
    open_driver()?;
    let mut version = 0;
    // SAFETY: the call writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(CudaError::of("cuDriverGetVersion"))?;
    Ok((version, device_count()?))
}

fn device_count() -> Result<c_int, CudaError> {
    result::device::get_count().map_err(CudaError::of("cuDeviceGetCount"))
}

/// Makes a context current on this thread.
pub(super) fn make_current(context: &driver::CudaContext) -> Result<(), CudaError> {
    context.bind_to_thread().map_err(CudaError::of("cuCtxSetCurrent"))
}

/// The device properties that determine the compilation and the launches of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The major and the minor version of the compute capability: 9 and 0 on an H100.
    pub capability: (u32, u32),
    /// The number of streaming multiprocessors. The number of concurrent blocks is a multiple of this number.
    pub multiprocessors: u32,
}

/// The primary context of a GPU, which libtorch uses as well. The context is retained until this process ends.
#[derive(Clone, Copy, Debug)]
pub struct CudaContext(&'static Arc<driver::CudaContext>);

impl CudaContext {
    /// Returns the context of device `index`, and makes it current on this thread.
    ///
    /// # Errors
    /// If there is no driver or no such device.
    pub fn of_device(index: usize) -> Result<CudaContext, CudaError> {
        static CONTEXTS: Mutex<Vec<CudaContext>> = Mutex::new(Vec::new());
        open_driver()?;
        let count = device_count()?.max(0) as usize;
        if index >= count {
            return Err(CudaError::NoDevice { index, count });
        }
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = contexts.iter().find(|context| context.0.ordinal() == index).copied();
        let context = match known {
            Some(context) => context,
            None => {
                let context = CudaContext::retain(index)?;
                contexts.push(context);
                context
            }
        };
        make_current(context.0)?;
        Ok(context)
    }

    fn retain(index: usize) -> Result<CudaContext, CudaError> {
        let context = driver::CudaContext::new(index).map_err(CudaError::of("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: event tracking protects only `CudaSlice`s. This program makes none, because libtorch owns the
        // tensors. With tracking, the creation of the first stream would wait for all work of the device.
        unsafe { context.disable_event_tracking() };
        Ok(CudaContext(Box::leak(Box::new(context))))
    }

    /// Returns the driver's name for the model of the device.
    pub(crate) fn device_name(&self) -> Result<String, CudaError> {
        self.0.name().map_err(CudaError::of("cuDeviceGetName"))
    }

    /// Returns the properties of the context's device.
    pub fn properties(&self) -> Result<DeviceProperties, CudaError> {
        let attribute = |attribute| {
            let value = self.0.attribute(attribute).map_err(CudaError::of("cuDeviceGetAttribute"))?;
            Ok::<_, CudaError>(value.max(0) as u32)
        };
        Ok(DeviceProperties {
            capability: (
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        })
    }

    /// Returns `cudarc`'s context, and makes it current on this thread: libtorch may have made another device's context
    /// current.
    pub(super) fn current(&self) -> Result<&'static Arc<driver::CudaContext>, CudaError> {
        make_current(self.0).map(|()| self.0)
    }

    /// Whether a tensor is in the memory of a GPU.
    pub fn holds(&self, tensor: &Tensor) -> bool {
        tensor.device().is_cuda() || self.is_device_memory(tensor.data_ptr().cast())
    }

    /// Whether an address is in the memory of a GPU.
    pub fn is_device_memory(&self, address: *const c_void) -> bool {
        let mut kind: u32 = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: the call writes one unsigned integer; for memory that is unknown to the driver it returns an error.
        let result = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address as u64) };
        result.result().is_ok() && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// If [`FUNCTIONS`] lacked a function that `cudarc` calls, the process would panic on an old driver instead of
    /// reporting an error. This test compares the list with the functions of the stand-in for the driver. The tests
    /// that use the stand-in call all these functions, except the functions that load and launch kernels. Those tests
    /// would panic if the stand-in lacked a function.
    #[test]
    fn the_functions_that_are_looked_for_are_those_of_the_stand_in() {
        let stand_in = [
            include_str!("../../../../tests/nccl/src/driver.rs"),
            include_str!("../../../../tests/nccl/src/copies.rs"),
        ];
        let declared = stand_in.iter().flat_map(|file| file.lines());
        let names =
            declared.filter_map(|line| line.split_once("extern \"C\" fn ")?.1.split_once('(').map(|(name, _)| name));
        let driver_functions = names.filter(|name| name.starts_with("cu") && !name.starts_with("cuda"));
        assert_eq!(driver_functions.collect::<BTreeSet<_>>(), BTreeSet::from(FUNCTIONS));
    }
}
