//! The launcher's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stagecoach_lifecycle::UnixMillis;

/// Unix time that is monotonic while the launcher lives, even if the system's clock is changed.
pub(super) struct Clock {
    epoch: Duration,
    started: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), started: Instant::now() }
    }

    pub(super) fn now(&self) -> UnixMillis {
        UnixMillis((self.epoch + self.started.elapsed()).as_millis() as u64)
    }
}
