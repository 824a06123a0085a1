//! The decision whether a step can finish after a stop request, from the durations of steps and saves.

use std::time::{Duration, Instant};

use stagecoach_engine::execute::StopRequest;

/// The share of the grace period within which the stage must save the checkpoint. In the remaining time, the stage
/// exits.
const SAVE_FRACTION_OF_GRACE: f64 = 0.8;

/// The data that decides whether a step can finish in time.
#[derive(Clone, Copy, Debug)]
pub(in crate::train) struct DrainEstimate {
    /// The time after the stop request within which the stage must save the checkpoint.
    pub(in crate::train) timeout: Duration,
    /// The time at which the step began.
    pub(in crate::train) step_started: Instant,
    /// The duration of the last step; `None` before the first step.
    pub(in crate::train) step: Option<Duration>,
    /// The duration of the last save; `None` before the first save.
    pub(in crate::train) save: Option<Duration>,
    /// Whether a save is in progress, which must finish before the next one.
    pub(in crate::train) is_saving: bool,
}

/// Returns the time after a stop request within which the stage must save the checkpoint, for a grace period of
/// `grace`.
pub(in crate::train) fn drain_timeout(grace: Duration) -> Duration {
    grace.mul_f64(SAVE_FRACTION_OF_GRACE)
}

impl DrainEstimate {
    /// Returns whether a stop is requested and, if so, whether the step is finished first or abandoned, as seen at
    /// `now`. Without measurements, a save is estimated to take a quarter of the timeout, and the rest of the step to
    /// take no time. An unmeasured step is therefore abandoned when only the estimated time of the save remains.
    pub(in crate::train) fn stop(&self, requested_at: Option<Instant>, now: Instant) -> StopRequest {
        let Some(requested_at) = requested_at else { return StopRequest::None };
        let rest = self.step.map_or(Duration::ZERO, |step| step.saturating_sub(now - self.step_started));
        let save = self.save.unwrap_or(self.timeout / 4) * if self.is_saving { 2 } else { 1 };
        if now + rest + save > requested_at + self.timeout { StopRequest::Immediately } else { StopRequest::AfterStep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_given_up_when_its_rest_and_the_save_take_longer_than_is_left() {
        let started = Instant::now();
        let seconds = Duration::from_secs;
        // steps of 20 s, and a grace period of 30 s, of which 24 s are for step and save
        let estimate = DrainEstimate {
            timeout: drain_timeout(seconds(30)),
            step_started: started,
            step: Some(seconds(20)),
            save: Some(seconds(3)),
            is_saving: false,
        };
        let stop = |estimate: DrainEstimate, requested, now| {
            estimate.stop(Some(started + seconds(requested)), started + seconds(now))
        };
        assert_eq!(estimate.stop(None, started), StopRequest::None);
        assert_eq!(stop(estimate, 0, 0), StopRequest::AfterStep);
        assert_eq!(stop(DrainEstimate { is_saving: true, ..estimate }, 0, 0), StopRequest::Immediately);
        assert_eq!(stop(DrainEstimate { step: Some(seconds(40)), ..estimate }, 2, 2), StopRequest::Immediately);
        assert_eq!(stop(DrainEstimate { step: Some(seconds(40)), ..estimate }, 30, 30), StopRequest::AfterStep);
        // this step is slower than the previous one
        assert_eq!(stop(estimate, 10, 31), StopRequest::AfterStep);
        assert_eq!(stop(estimate, 10, 32), StopRequest::Immediately);
        // no step and no save has been measured
        let first = DrainEstimate { step: None, save: None, ..estimate };
        assert_eq!((stop(first, 1, 19), stop(first, 1, 20)), (StopRequest::AfterStep, StopRequest::Immediately));
    }
}
