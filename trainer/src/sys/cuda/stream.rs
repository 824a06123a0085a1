//! CUDA's streams and events. Copies and messages run on streams concurrently with the computation, and events time the
//! computation. libtorch computes on the default stream, whose handle is null, so that ordering work against it needs
//! nothing from libtorch.
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
/// `CU_EVENT_BLOCKING_SYNC`: a thread that waits for the event sleeps. The event's time is recorded too.
const BLOCKING_SYNC: c_uint = 1;

impl CudaContext {
    /// A new stream, which neither waits for the default stream nor makes it wait.
    pub(crate) fn stream(&self) -> Result<CudaStream, CudaError> {
        let mut raw = ptr::null_mut();
        let driver = self.current()?;
        // SAFETY: writes one handle.
        driver.check("cuStreamCreate", unsafe { (driver.stream_create)(&mut raw, NON_BLOCKING) })?;
        Ok(CudaStream { context: *self, raw })
    }

    /// An event after all work queued so far on the default stream, which libtorch uses.
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

    /// Makes work that is queued on the stream from now on run after the event.
    pub(crate) fn wait(&self, event: &CudaEvent) -> Result<(), CudaError> {
        event.hold_up(self.raw)
    }

    /// An event after all work queued so far on the stream.
    pub(crate) fn record(&self) -> Result<CudaEvent, CudaError> {
        self.context.record(self.raw)
    }

    /// Waits until all work queued on the stream is done.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        driver.check("cuStreamSynchronize", unsafe { (driver.stream_synchronize)(self.raw) })
    }

    /// Copies a tensor in GPU memory into a host tensor, whose memory should be pinned: otherwise the copy blocks the
    /// host. The caller keeps both tensors, does not write to the source and does not read the target until an event
    /// after the copy is complete.
    pub(crate) fn copy_to_host(&self, to: &Tensor, from: &Tensor) -> Result<(), CudaError> {
        let (driver, bytes) = (self.context.current()?, bytes_to_copy(to, from));
        // SAFETY: both are contiguous and have so many bytes; the caller keeps them.
        let result = unsafe { (driver.copy_to_host)(to.data_ptr().cast(), from.data_ptr() as u64, bytes, self.raw) };
        driver.check("cuMemcpyDtoHAsync", result)
    }

    /// The same from host memory to GPU memory.
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
// SAFETY: several threads may use an event at the same time, since none records it again.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// Makes computations of libtorch from now on run after the event.
    pub(crate) fn make_default_stream_wait(&self) -> Result<(), CudaError> {
        self.hold_up(ptr::null_mut())
    }

    fn hold_up(&self, stream: Handle) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: both handles are valid; null is the default stream.
        driver.check("cuStreamWaitEvent", unsafe { (driver.stream_wait_event)(stream, self.raw, 0) })
    }

    /// Whether all work before the event is done.
    pub(crate) fn is_complete(&self) -> Result<bool, CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        match unsafe { (driver.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            result => driver.check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until all work before the event is done. The thread sleeps meanwhile.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.current()?;
        // SAFETY: a valid handle.
        driver.check("cuEventSynchronize", unsafe { (driver.event_synchronize)(self.raw) })
    }

    /// Seconds on the device from `earlier` to this event, negative if this event came first; `None` if either is not
    /// complete. Accurate to half a microsecond for intervals of seconds.
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
        // SAFETY: a valid handle, not used again; threads that wait for it continue to wait.
        unsafe { (driver.event_destroy)(self.raw) };
    }
}
