//! Points in time on the host or on a GPU. The host runs ahead of the GPU, and can read the GPU's times only later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stream::CudaEvent;

/// A point in time: an instant on the host, or the time at which a GPU completes the work queued so far.
#[derive(Clone, Debug)]
pub enum Timestamp {
    /// An instant on the host.
    Host(Instant),
    /// An event on a GPU.
    Device(Arc<CudaEvent>),
}

impl Timestamp {
    /// Returns the current time on the host.
    pub fn now() -> Timestamp {
        Timestamp::Host(Instant::now())
    }

    /// Waits until the GPU has reached an event; does not wait for an instant on the host. Returns `false` if the wait
    /// fails.
    pub fn wait(&self) -> bool {
        match self {
            Timestamp::Host(_) => true,
            Timestamp::Device(event) => event.synchronize().is_ok(),
        }
    }

    /// Converts the timestamp to an instant of the host's clock. Returns `None` for an event that the GPU has not
    /// reached, and for every event if `clock` is `None`.
    pub fn instant(&self, clock: Option<&DeviceClock>) -> Option<Instant> {
        match self {
            Timestamp::Host(at) => Some(*at),
            Timestamp::Device(event) => clock?.instant(event),
        }
    }
}

/// Relates the events of a GPU to the clock of the host.
#[derive(Clone, Debug)]
pub struct DeviceClock {
    zero: Arc<CudaEvent>,
    at: Instant,
}

impl DeviceClock {
    /// Creates a clock from a known pair: the event `zero` was complete at the instant `at`.
    pub fn new(zero: CudaEvent, at: Instant) -> DeviceClock {
        DeviceClock { zero: Arc::new(zero), at }
    }

    /// Returns the time at which an event was complete; `None` if it is not complete.
    fn instant(&self, event: &CudaEvent) -> Option<Instant> {
        let seconds = event.seconds_since(&self.zero)?;
        let distance = Duration::try_from_secs_f64(seconds.abs()).ok()?;
        if seconds < 0.0 { self.at.checked_sub(distance) } else { self.at.checked_add(distance) }
    }
}
