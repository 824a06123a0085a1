//! Points in time: the host's, or a GPU's, of which the host learns later, as it runs ahead of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stream::CudaEvent;

/// A point in time: now on the host, or when a GPU is done with what it has been given so far.
#[derive(Clone, Debug)]
pub(crate) enum Timestamp {
    /// On the host.
    Host(Instant),
    /// On a GPU.
    Device(Arc<CudaEvent>),
}

impl Timestamp {
    /// Now, on the host.
    pub(crate) fn now() -> Timestamp {
        Timestamp::Host(Instant::now())
    }

    /// Waits until it has passed; whether it has.
    pub(crate) fn wait(&self) -> bool {
        match self {
            Timestamp::Host(_) => true,
            Timestamp::Device(event) => event.synchronize().is_ok(),
        }
    }

    /// The point on the host's clock; none if a GPU has not reached it, or there is no clock for it.
    pub(crate) fn instant(&self, clock: Option<&DeviceClock>) -> Option<Instant> {
        match self {
            Timestamp::Host(at) => Some(*at),
            Timestamp::Device(event) => clock?.instant(event),
        }
    }
}

/// Relates the events of a GPU to the clock of the host.
#[derive(Clone, Debug)]
pub(crate) struct DeviceClock {
    zero: Arc<CudaEvent>,
    at: Instant,
}

impl DeviceClock {
    /// The event `zero` is complete at `at`.
    pub(crate) fn new(zero: CudaEvent, at: Instant) -> DeviceClock {
        DeviceClock { zero: Arc::new(zero), at }
    }

    /// When an event was complete; none if it is not.
    fn instant(&self, event: &CudaEvent) -> Option<Instant> {
        let seconds = event.seconds_since(&self.zero)?;
        let distance = Duration::try_from_secs_f64(seconds.abs()).ok()?;
        if seconds < 0.0 { self.at.checked_sub(distance) } else { self.at.checked_add(distance) }
    }
}
