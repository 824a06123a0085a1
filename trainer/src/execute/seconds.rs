//! Where a step's time went.

use std::time::Instant;

/// Wall seconds of one step on one stage, split into waiting and the rest.
#[derive(Clone, Copy, Debug)]
pub struct Seconds {
    started: Instant,
    waited: f64,
}

impl Seconds {
    /// A step starts now.
    pub fn start() -> Seconds {
        Seconds { started: Instant::now(), waited: 0.0 }
    }

    /// Runs `wait` and counts its time as waiting.
    pub fn waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let result = wait();
        self.waited += since.elapsed().as_secs_f64();
        result
    }

    /// Since the start, in seconds.
    pub fn wall(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Of which spent waiting for other stages, in seconds.
    pub fn waited(&self) -> f64 {
        self.waited
    }
}
