//! Wall-clock time of a step, split into waiting and the rest.

use std::time::Instant;

/// Measures the wall-clock time of one step on one stage, and how much of it was spent waiting for other stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTimer {
    started: Instant,
    waited_seconds: f64,
}

impl StepTimer {
    /// Starts timing a step.
    pub(crate) fn start() -> StepTimer {
        StepTimer { started: Instant::now(), waited_seconds: 0.0 }
    }

    /// Runs `wait` and adds its duration to the waiting time.
    pub(crate) fn time_wait<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let result = wait();
        self.waited_seconds += since.elapsed().as_secs_f64();
        result
    }

    /// Seconds since the start.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Seconds spent waiting for other stages.
    pub(crate) fn waited_seconds(&self) -> f64 {
        self.waited_seconds
    }
}
