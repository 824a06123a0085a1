//! CUDA's streams and events, by which copies and messages run beside the computation, and by which it is timed. libtorch computes on
//! the default stream, whose handle is null, so nothing of libtorch's own is needed to order work against it.
//!
//! Source: the CUDA driver API reference.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use tch::Tensor;

use super::driver::{CudaContext, CudaError, Handle, SUCCESS};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream, nor the default stream for it.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`: who waits for the event sleeps. Its time is recorded too.
const BLOCKING_SYNC: c_uint = 1;

impl CudaContext {
    /// A new stream, which neither waits for the default stream nor holds it up.
    pub(crate) fn stream(&self) -> Result<CudaStream, CudaError> {
        let mut raw = ptr::null_mut();
        let driver = self.current()?;
        // SAFETY: writes one handle.
        driver.check("cuStreamCreate", unsafe { (driver.stream_create)(&mut raw, NON_BLOCKING) })?;
        Ok(CudaStream { context: *self, raw })
    }

    /// An event behind all that has been given to the default stream so far, which is libtorch's.
    pub(crate) fn record_default_stream(&self) -> Result<CudaEvent, CudaError> {
        self.record(ptr::null_mut())
    }

    fn record(&self, stream: Handle) -> Result<CudaEvent, CudaError> {
        let (driver, mut raw) = (self.current()?, ptr::null_mut());
        // SAFETY: writes one handle.
        driver.check("cuEventCreate", unsafe { (driver.event_create)(&mut raw, BLOCKING_SYNC) })?;
        let event = CudaEvent { context: *self, raw };
        // SAFETY: both handles are valid; null is the default stream.
        driver.check("cuEventRecord", unsafe { (driver.event_record)(raw, stream) })?;
        Ok(event)
    }
}

/// A stream of a GPU.
#[derive(Debug)]
pub(crate) struct CudaStream {
    context: CudaContext,
    raw: Handle,
}

// SAFETY: streams may be used on any thread.
unsafe impl Send for CudaStream {}

impl CudaStream {
    /// The driver's handle, which is also the runtime's.
    pub(crate) fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// What is given to the stream from now on runs after the event.
    pub(crate) fn wait(&self, event: &CudaEvent) -> Result<(), CudaError> {
        event.hold_up(self.raw)
    }

    /// An event behind all that has been given to the stream so far.
    pub(crate) fn record(&self) -> Result<CudaEvent, CudaError> {
        self.context.record(self.raw)
    }

    /// Waits until all that has been given to the stream is done.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        driver.check("cuStreamSynchronize", unsafe { (driver.stream_synchronize)(self.raw) })
    }

    /// Copies a tensor in the GPU's memory into one of the host, whose memory is pinned or the copy holds up the host. The caller
    /// keeps both, and leaves the one alone and the other unread, until an event behind the copy is complete.
    pub(crate) fn copy_to_host(&self, to: &Tensor, from: &Tensor) -> Result<(), CudaError> {
        let (driver, bytes) = (self.context.current()?, bytes_to_copy(to, from));
        // SAFETY: both are contiguous and have so many bytes; the caller keeps them.
        let result = unsafe { (driver.copy_to_host)(to.data_ptr().cast(), from.data_ptr() as u64, bytes, self.raw) };
        driver.check("cuMemcpyDtoHAsync", result)
    }

    /// The same from the host's memory into the GPU's.
    pub(crate) fn copy_to_device(&self, to: &Tensor, from: &Tensor) -> Result<(), CudaError> {
        let (driver, bytes) = (self.context.current()?, bytes_to_copy(to, from));
        // SAFETY: both are contiguous and have so many bytes; the caller keeps them.
        let result = unsafe { (driver.copy_to_device)(to.data_ptr() as u64, from.data_ptr().cast(), bytes, self.raw) };
        driver.check("cuMemcpyHtoDAsync", result)
    }
}

fn bytes_to_copy(to: &Tensor, from: &Tensor) -> usize {
    debug_assert!(to.is_contiguous() && from.is_contiguous() && to.kind() == from.kind() && to.numel() == from.numel());
    from.numel() * from.kind().elt_size_in_bytes()
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let Ok(driver) = self.context.current() else { return };
        // SAFETY: a valid handle, not used again; the driver frees it when its work is done.
        unsafe { (driver.stream_destroy)(self.raw) };
    }
}

/// A point in the work of a stream.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    context: CudaContext,
    raw: Handle,
}

// SAFETY: events may be used on any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: and by several at a time: none records it again.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// What libtorch computes from now on runs after the event.
    pub(crate) fn make_default_stream_wait(&self) -> Result<(), CudaError> {
        self.hold_up(ptr::null_mut())
    }

    fn hold_up(&self, stream: Handle) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: both handles are valid; null is the default stream.
        driver.check("cuStreamWaitEvent", unsafe { (driver.stream_wait_event)(stream, self.raw, 0) })
    }

    /// Whether all before it is done.
    pub(crate) fn is_complete(&self) -> Result<bool, CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        match unsafe { (driver.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            result => driver.check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until all before it is done. The thread sleeps meanwhile.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        driver.check("cuEventSynchronize", unsafe { (driver.event_synchronize)(self.raw) })
    }

    /// Seconds on the device from `earlier` to this one, negative if this one was first; none if either is not complete. To half a
    /// microsecond within seconds.
    pub(crate) fn seconds_since(&self, earlier: &CudaEvent) -> Option<f64> {
        let mut milliseconds = 0.0;
        let driver = self.context.current().ok()?;
        // SAFETY: writes one number; both handles are valid.
        let result = unsafe { (driver.event_elapsed_time)(&mut milliseconds, earlier.raw, self.raw) };
        (result == SUCCESS).then(|| f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let Ok(driver) = self.context.current() else { return };
        // SAFETY: a valid handle, not used again; who waits for it still does.
        unsafe { (driver.event_destroy)(self.raw) };
    }
}
