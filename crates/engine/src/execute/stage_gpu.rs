//! Uses a stage's GPU directly, not through libtorch: reads its clock, and copies state to the host while libtorch
//! computes.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent, CudaStream, DeviceClock, Timestamp};
use tch::Tensor;

/// The GPU whose memory holds a stage's tensors.
#[derive(Debug)]
pub struct StageGpu {
    context: CudaContext,
    /// The stream for copies of state. A copy begins after the computations that were queued before it.
    copy_stream: CudaStream,
    /// Copies that no update has waited for yet.
    copies: RefCell<Vec<Arc<CopyToHost>>>,
    clock: DeviceClock,
}

impl StageGpu {
    /// Creates a `StageGpu` for the GPU of `context`. The caller must call [`start_clock`](Self::start_clock) before
    /// the first step.
    pub fn new(context: CudaContext) -> Result<StageGpu, CudaError> {
        let clock = clock_of_idle(context)?;
        Ok(StageGpu { context, copy_stream: context.stream()?, copies: RefCell::default(), clock })
    }

    /// Returns the context of the GPU.
    pub(super) fn context(&self) -> CudaContext {
        self.context
    }

    /// Returns the time at which the GPU completes the work that libtorch has queued so far.
    pub(super) fn timestamp(&self) -> Timestamp {
        let event = self.context.record_default_stream();
        // if recording fails, libtorch's next call reports the failure
        event.map_or_else(|_| Timestamp::now(), |event| Timestamp::Device(Arc::new(event)))
    }

    /// Returns the GPU's clock, which converts the events of this step to times of the host.
    pub(super) fn clock(&self) -> DeviceClock {
        self.clock.clone()
    }

    /// Waits for all work that libtorch has queued, and aligns the GPU's clock with the host's clock.
    pub fn start_clock(&mut self) -> Result<(), CudaError> {
        self.context.record_default_stream()?.synchronize()?;
        self.clock = clock_of_idle(self.context)?;
        Ok(())
    }

    /// Aligns the GPU's clock with the host's clock. The caller must have waited for all work that libtorch has queued,
    /// so that the GPU is idle.
    pub(super) fn set_clock(&mut self) {
        if let Ok(clock) = clock_of_idle(self.context) {
            self.clock = clock;
        }
    }

    /// Starts to copy tensors of the stage into pinned tensors of the host, after the work that libtorch has queued so
    /// far. The GPU continues to compute, and only the next update waits for the copies.
    pub(crate) fn copy_to_host<'t>(
        &self,
        mut pairs: impl Iterator<Item = (&'t Tensor, &'t Tensor)>,
    ) -> Result<Arc<CopyToHost>, CudaError> {
        self.copy_stream.wait(&self.context.record_default_stream()?)?;
        let begun = pairs.try_for_each(|(to, from)| self.copy_stream.copy_to_host(to, from));
        let done = begun.and_then(|()| self.copy_stream.record()).inspect_err(|_| {
            let _ = self.copy_stream.synchronize(); // because no later wait covers the copies that have started
        })?;
        let copy = Arc::new(CopyToHost { done: Arc::new(done), waited: OnceLock::new() });
        self.copies.borrow_mut().push(Arc::clone(&copy));
        Ok(copy)
    }

    /// Delays the work that libtorch queues after this call until the pending copies are complete, because the work may
    /// write to the source tensors of the copies.
    pub(crate) fn wait_for_copies(&self) -> Result<(), CudaError> {
        for copying in self.copies.take() {
            let _ = copying.waited.set(self.context.record_default_stream()?);
            copying.done.make_default_stream_wait()?;
        }
        Ok(())
    }
}

/// Returns the clock of a GPU. The GPU must be idle, so that an event completes as soon as it is recorded.
fn clock_of_idle(context: CudaContext) -> Result<DeviceClock, CudaError> {
    // the host's clock is read before the event is recorded: in the other order, converted times of GPU events would be
    // late, and an action could seem to end after the end of its step
    let now = Instant::now();
    Ok(DeviceClock::new(context.record_default_stream()?, now))
}

/// Makes later work of libtorch wait for pending copies, so that this work does not overwrite the source tensors of the
/// copies after their memory is freed.
impl Drop for StageGpu {
    fn drop(&mut self) {
        let _ = self.wait_for_copies();
    }
}

/// A started copy of a stage's state to the host.
#[derive(Debug)]
pub struct CopyToHost {
    done: Arc<CudaEvent>,
    /// The event at which the GPU began to wait for the copy; unset before an update waits for it.
    waited: OnceLock<CudaEvent>,
}

impl CopyToHost {
    /// Returns the event that completes when the copy is complete.
    pub(crate) fn done(&self) -> Arc<CudaEvent> {
        Arc::clone(&self.done)
    }

    /// Waits until the copy is complete.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.done.synchronize()
    }

    /// Returns how long the copy has delayed an update. Returns zero before an update waits for the copy, and before
    /// the copy is complete.
    pub fn stall(&self) -> Duration {
        let seconds = self.waited.get().and_then(|waited| self.done.seconds_since(waited));
        Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default()
    }
}
