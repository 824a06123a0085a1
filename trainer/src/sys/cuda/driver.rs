//! CUDA's driver API: its functions, its errors, and the context of a device.
//!
//! Source: the CUDA driver API reference.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use tch::Tensor;

use crate::sys::library::{LibraryError, c_functions};

/// The driver's library, which is installed with the driver, not with CUDA.
pub(super) const LIBRARY: &str = "libcuda.so.1";

pub(super) type Handle = *mut c_void;

pub(super) const SUCCESS: c_int = 0;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const DEVICE_UNAVAILABLE: c_int = 46;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICES: c_int = 100;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;

c_functions! {
    DriverFunctions {
        init: "cuInit" (c_uint),
        device_get_count: "cuDeviceGetCount" (*mut c_int),
        device_get: "cuDeviceGet" (*mut c_int, c_int),
        device_get_name: "cuDeviceGetName" (*mut c_char, c_int, c_int),
        get_version: "cuDriverGetVersion" (*mut c_int),
        retain_primary_context: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int),
        set_current_context: "cuCtxSetCurrent" (Handle),
        stream_create: "cuStreamCreate" (*mut Handle, c_uint),
        stream_destroy: "cuStreamDestroy_v2" (Handle),
        stream_synchronize: "cuStreamSynchronize" (Handle),
        stream_wait_event: "cuStreamWaitEvent" (Handle, Handle, c_uint),
        event_create: "cuEventCreate" (*mut Handle, c_uint),
        event_destroy: "cuEventDestroy_v2" (Handle),
        event_record: "cuEventRecord" (Handle, Handle),
        event_query: "cuEventQuery" (Handle),
        event_synchronize: "cuEventSynchronize" (Handle),
        event_elapsed_time: "cuEventElapsedTime_v2" (*mut f32, Handle, Handle),
        host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint),
        host_unregister: "cuMemHostUnregister" (*mut c_void),
        copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle),
        copy_to_device: "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle),
        pointer_get_attribute: "cuPointerGetAttribute" (*mut c_void, c_int, u64),
        get_error_string: "cuGetErrorString" (c_int, *mut *const c_char),
    } returns c_int
}

/// The reason that the driver can't be used, or its error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CudaError {
    /// The driver is missing or too old.
    #[error("there is no usable NVIDIA driver: {0}")]
    NoDriver(#[from] LibraryError),
    /// The driver has no such device.
    #[error("the NVIDIA driver has {count} devices, and device {index} is asked for")]
    NoDevice { index: usize, count: usize },
    /// The driver shows this process no device.
    #[error("the NVIDIA driver shows this process no device")]
    NoDevices,
    /// Another process has exclusive use of the device, or its mode prohibits use.
    #[error(
        "the GPU is not available: another process has it for itself (compute mode EXCLUSIVE_PROCESS), or its mode is PROHIBITED: end that \
         process, or run nvidia-smi -c DEFAULT"
    )]
    Busy,
    /// A call failed.
    #[error("{call}: {why}")]
    Failed { call: &'static str, why: String },
}

impl DriverFunctions {
    pub(super) fn check(&self, call: &'static str, result: c_int) -> Result<(), CudaError> {
        match result {
            SUCCESS => return Ok(()),
            NO_DEVICES => return Err(CudaError::NoDevices),
            DEVICE_UNAVAILABLE => return Err(CudaError::Busy),
            _ => {}
        }
        let mut text = ptr::null();
        // SAFETY: writes one pointer, to a string that is never freed.
        let known = unsafe { (self.get_error_string)(result, &mut text) } == SUCCESS && !text.is_null();
        // SAFETY: a null-terminated string of the library.
        let why = known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(CudaError::Failed { call, why: why.unwrap_or_else(|| format!("error {result}")) })
    }
}

/// The driver, opened once.
fn driver() -> Result<&'static DriverFunctions, CudaError> {
    static DRIVER: OnceLock<Result<DriverFunctions, CudaError>> = OnceLock::new();
    let opened = DRIVER.get_or_init(|| {
        let functions = DriverFunctions::open(LIBRARY)?;
        // SAFETY: takes no pointer; may be called any number of times.
        functions.check("cuInit", unsafe { (functions.init)(0) })?;
        Ok(functions)
    });
    opened.as_ref().map_err(Clone::clone)
}

/// The CUDA version that the driver supports, such as 13000 for 13.0, and the number of devices.
///
/// # Errors
/// If there is no driver.
pub(super) fn version_and_devices() -> Result<(c_int, c_int), CudaError> {
    let driver = driver()?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: writes one integer.
    driver.check("cuDriverGetVersion", unsafe { (driver.get_version)(&mut version) })?;
    // SAFETY: as above.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&mut count) })?;
    Ok((version, count))
}

/// The context of a GPU that libtorch uses as well (the device's primary context).
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaContext {
    driver: &'static DriverFunctions,
    device: c_int,
    context: Handle,
}

// SAFETY: the driver's functions may be called on any thread with a current context.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// The context of device `index`, made current on this thread.
    ///
    /// # Errors
    /// If there is no driver or no such device.
    pub(crate) fn of_device(index: usize) -> Result<CudaContext, CudaError> {
        let driver = driver()?;
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: writes one integer.
        driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&mut count) })?;
        if index >= count.max(0) as usize {
            return Err(CudaError::NoDevice { index, count: count.max(0) as usize });
        }
        // SAFETY: writes one integer.
        driver.check("cuDeviceGet", unsafe { (driver.device_get)(&mut device, index as c_int) })?;
        // SAFETY: writes one handle of a context that is retained until the process ends.
        let retained = unsafe { (driver.retain_primary_context)(&mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", retained)?;
        let context = CudaContext { driver, device, context };
        context.make_current()?;
        Ok(context)
    }

    /// The device's model, by the driver's name.
    pub(crate) fn device_name(&self) -> Result<String, CudaError> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: writes at most as many bytes as the length says, of which the last is null.
        let result = unsafe { (self.driver.device_get_name)(name.as_mut_ptr(), name.len() as c_int, self.device) };
        self.driver.check("cuDeviceGetName", result)?;
        // SAFETY: it has written a null-terminated string, or left the array of nulls.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The driver's number of the context's device.
    pub(super) fn device(&self) -> c_int {
        self.device
    }

    /// The driver's result of `call`.
    pub(super) fn check(&self, call: &'static str, result: c_int) -> Result<(), CudaError> {
        self.driver.check(call, result)
    }

    /// The driver's functions, with this context made current on the thread.
    pub(super) fn current(&self) -> Result<&'static DriverFunctions, CudaError> {
        self.make_current().map(|()| self.driver)
    }

    /// Makes this context the current one of the thread.
    pub(super) fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.set_current_context)(self.context) })
    }

    /// Whether a tensor is in the memory of a GPU.
    pub(crate) fn holds(&self, tensor: &Tensor) -> bool {
        tensor.device().is_cuda() || self.is_device_memory(tensor.data_ptr().cast())
    }

    /// Whether an address is in the memory of a GPU.
    pub(crate) fn is_device_memory(&self, address: *const c_void) -> bool {
        let mut kind: c_uint = 0;
        let kind_ptr = (&raw mut kind).cast();
        // SAFETY: writes one unsigned integer; for memory that is unknown to the driver it returns an error.
        let result = unsafe { (self.driver.pointer_get_attribute)(kind_ptr, MEMORY_TYPE, address as u64) };
        result == SUCCESS && kind == DEVICE_MEMORY
    }
}
