//! CUDA's streams and events. Copies and messages run on streams concurrently with the computation, and events time the
//! computation. libtorch computes on the default stream. The handle of the default stream is null, so this module can
//! order work relative to the default stream without calling libtorch.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{self, result, sys};
use tch::Tensor;

use super::driver::{CudaContext, CudaError, make_current};

/// With these flags, a thread that waits for an event sleeps, and the driver records the event's time.
const EVENT_FLAGS: Option<sys::CUevent_flags> = Some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);

impl CudaContext {
    /// Creates a stream. The new stream and the default stream do not wait for each other.
    pub fn stream(&self) -> Result<CudaStream, CudaError> {
        let stream = self.current()?.new_stream().map_err(CudaError::of("cuStreamCreate"))?;
        Ok(CudaStream(stream))
    }

    /// Records an event after all work queued so far on the default stream, which libtorch uses.
    pub fn record_default_stream(&self) -> Result<CudaEvent, CudaError> {
        record(&self.current()?.default_stream())
    }
}

fn record(stream: &driver::CudaStream) -> Result<CudaEvent, CudaError> {
    stream.record_event(EVENT_FLAGS).map(CudaEvent).map_err(CudaError::of("cuEventRecord"))
}

fn make_wait(stream: &driver::CudaStream, event: &CudaEvent) -> Result<(), CudaError> {
    stream.wait(&event.0).map_err(CudaError::of("cuStreamWaitEvent"))
}

/// A stream of a GPU. When this value is dropped, the driver frees the stream after the stream's work is done.
#[derive(Debug)]
pub struct CudaStream(Arc<driver::CudaStream>);

impl CudaStream {
    /// Returns the driver's handle of the stream, which is also the handle in the CUDA runtime.
    pub fn raw(&self) -> *mut c_void {
        self.0.cu_stream().cast()
    }

    /// Makes all work that is queued on the stream after this call wait for the event.
    pub fn wait(&self, event: &CudaEvent) -> Result<(), CudaError> {
        make_wait(&self.0, event)
    }

    /// Records an event after all work queued so far on the stream.
    pub fn record(&self) -> Result<CudaEvent, CudaError> {
        record(&self.0)
    }

    /// Waits until all work queued on the stream is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.synchronize().map_err(CudaError::of("cuStreamSynchronize"))
    }

    /// Copies a tensor in GPU memory into a host tensor. The host tensor's memory should be pinned; otherwise the copy
    /// blocks the host. Until an event after the copy is complete, the caller keeps both tensors, does not write to the
    /// source, and does not read the target.
    pub fn copy_to_host(&self, to: &Tensor, from: &Tensor) -> Result<(), CudaError> {
        let bytes = self.begin_copy(to, from)?;
        // SAFETY: both are contiguous and have `bytes` bytes; the caller keeps them.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.data_ptr(), from.data_ptr() as u64, bytes, self.0.cu_stream()) }
            .result()
            .map_err(CudaError::of("cuMemcpyDtoHAsync"))
    }

    /// Copies a host tensor into a tensor in GPU memory, under the conditions of [`copy_to_host`](Self::copy_to_host).
    pub fn copy_to_device(&self, to: &Tensor, from: &Tensor) -> Result<(), CudaError> {
        let bytes = self.begin_copy(to, from)?;
        // SAFETY: both are contiguous and have `bytes` bytes; the caller keeps them.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.data_ptr() as u64, from.data_ptr(), bytes, self.0.cu_stream()) }
            .result()
            .map_err(CudaError::of("cuMemcpyHtoDAsync"))
    }

    /// Makes the stream's context current. Returns the number of bytes to copy.
    fn begin_copy(&self, to: &Tensor, from: &Tensor) -> Result<usize, CudaError> {
        debug_assert!(
            to.is_contiguous() && from.is_contiguous() && to.kind() == from.kind() && to.numel() == from.numel()
        );
        make_current(self.0.context())?;
        Ok(from.numel() * from.kind().elt_size_in_bytes())
    }
}

/// A point in the work of a stream. Several threads may use an event at the same time, because no thread records it
/// again. If an event is dropped, streams that wait for it continue to wait.
#[derive(Debug)]
pub struct CudaEvent(driver::CudaEvent);

impl CudaEvent {
    /// Makes all computations that libtorch queues after this call wait for the event.
    pub fn make_default_stream_wait(&self) -> Result<(), CudaError> {
        make_wait(&self.0.context().default_stream(), self)
    }

    /// Whether all work before the event is done.
    pub fn is_complete(&self) -> Result<bool, CudaError> {
        make_current(self.0.context())?;
        self.0.try_is_complete().map_err(CudaError::of("cuEventQuery"))
    }

    /// Waits until all work before the event is done. The thread sleeps during the wait.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.synchronize().map_err(CudaError::of("cuEventSynchronize"))
    }

    /// Returns the seconds on the device from `earlier` to this event: negative if this event came first, and `None` if
    /// one of the events is not complete. The result is accurate to half a microsecond for intervals of seconds.
    pub fn seconds_since(&self, earlier: &CudaEvent) -> Option<f64> {
        make_current(self.0.context()).ok()?;
        // SAFETY: both handles are valid. `cudarc`'s method would wait for both events.
        let milliseconds = unsafe { result::event::elapsed(earlier.0.cu_event(), self.0.cu_event()) }.ok()?;
        Some(f64::from(milliseconds) / 1e3)
    }
}
