//! A stage's GPU beside what libtorch computes there: its clock, and copies of the stage's state to the host meanwhile.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tch::Tensor;

use crate::sys::{CudaContext, CudaError, CudaEvent, CudaStream, DeviceClock, Timestamp};

/// The GPU in whose memory a stage's tensors are.
#[derive(Debug)]
pub(crate) struct StageGpu {
    context: CudaContext,
    /// On which state is copied, behind what is computed next.
    copy_stream: CudaStream,
    /// Copies for which no update has waited yet.
    copies: RefCell<Vec<Arc<CopyToHost>>>,
    clock: DeviceClock,
}

impl StageGpu {
    /// Of the GPU with this context. [`start_clock`](Self::start_clock) comes before the first step.
    pub(crate) fn new(context: CudaContext) -> Result<StageGpu, CudaError> {
        let clock = clock_of_idle(context)?;
        Ok(StageGpu { context, copy_stream: context.stream()?, copies: RefCell::default(), clock })
    }

    /// Its context.
    pub(super) fn context(&self) -> CudaContext {
        self.context
    }

    /// When it is done with what libtorch has given to it so far.
    pub(super) fn timestamp(&self) -> Timestamp {
        let event = self.context.record_default_stream();
        // what is wrong shows at the next call of libtorch's
        event.map_or_else(|_| Timestamp::now(), |event| Timestamp::Device(Arc::new(event)))
    }

    /// Its clock, for events of this step.
    pub(super) fn clock(&self) -> DeviceClock {
        self.clock.clone()
    }

    /// Waits for all that libtorch has given to it, and sets the clock.
    pub(crate) fn start_clock(&mut self) -> Result<(), CudaError> {
        self.context.record_default_stream()?.synchronize()?;
        self.clock = clock_of_idle(self.context)?;
        Ok(())
    }

    /// Sets the clock. The GPU is idle: the host has waited for all that libtorch has given to it.
    pub(super) fn set_clock(&mut self) {
        if let Ok(clock) = clock_of_idle(self.context) {
            self.clock = clock;
        }
    }

    /// Begins to copy tensors of the stage, as they are behind all that libtorch has been given so far, into pinned ones of the host.
    /// The GPU goes on meanwhile, up to the next update.
    pub(crate) fn copy_to_host<'t>(
        &self,
        mut pairs: impl Iterator<Item = (&'t Tensor, &'t Tensor)>,
    ) -> Result<Arc<CopyToHost>, CudaError> {
        self.copy_stream.wait(&self.context.record_default_stream()?)?;
        let begun = pairs.try_for_each(|(to, from)| self.copy_stream.copy_to_host(to, from));
        let done = begun.and_then(|()| self.copy_stream.record()).inspect_err(|_| {
            let _ = self.copy_stream.synchronize(); // nobody else knows of those that have begun
        })?;
        let copy = Arc::new(CopyToHost { done: Arc::new(done), waited: OnceLock::new() });
        self.copies.borrow_mut().push(Arc::clone(&copy));
        Ok(copy)
    }

    /// What libtorch is given from now on, which may write to what is copied, runs when it is copied.
    pub(crate) fn wait_for_copies(&self) -> Result<(), CudaError> {
        for copying in self.copies.take() {
            let _ = copying.waited.set(self.context.record_default_stream()?);
            copying.done.make_default_stream_wait()?;
        }
        Ok(())
    }
}

/// The clock of a GPU that is idle: an event is complete when it is recorded.
fn clock_of_idle(context: CudaContext) -> Result<DeviceClock, CudaError> {
    // before the event: the host's time at which a step ends must not be before the GPU's
    let now = Instant::now();
    Ok(DeviceClock::new(context.record_default_stream()?, now))
}

/// What has the memory next does not write to it while it is copied.
impl Drop for StageGpu {
    fn drop(&mut self) {
        let _ = self.wait_for_copies();
    }
}

/// A copy of a stage's state to the host that has begun.
#[derive(Debug)]
pub(crate) struct CopyToHost {
    done: Arc<CudaEvent>,
    /// When the GPU began to wait for it, if it has been told to.
    waited: OnceLock<CudaEvent>,
}

impl CopyToHost {
    /// Complete when all is copied.
    pub(crate) fn done(&self) -> Arc<CudaEvent> {
        Arc::clone(&self.done)
    }

    /// Waits until all is copied.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        self.done.synchronize()
    }

    /// How long an update was held up by it, once it is done; nothing if no update has been reached.
    pub(crate) fn stall(&self) -> Duration {
        let seconds = self.waited.get().and_then(|waited| self.done.seconds_since(waited));
        Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default()
    }
}
