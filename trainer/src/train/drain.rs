//! Whether a step that is asked to stop can be finished, by what steps and saves have taken.

use std::time::{Duration, Instant};

use crate::execute::StopRequest;

/// The part of the grace period in which the checkpoint must be saved; the rest is for leaving.
const SAVE_FRACTION_OF_GRACE: f64 = 0.8;

/// What a step needs to know to be finished in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrainEstimate {
    /// From the request on, until which the checkpoint must be saved.
    pub(super) timeout: Duration,
    /// When the step began.
    pub(super) step_started: Instant,
    /// What the last step took; none before the first.
    pub(super) step: Option<Duration>,
    /// What the last save took; none before the first.
    pub(super) save: Option<Duration>,
    /// A save is in progress, which is waited for before the next one.
    pub(super) is_saving: bool,
}

/// How long after the request the checkpoint must be saved, with a grace period of `grace`.
pub(super) fn drain_timeout(grace: Duration) -> Duration {
    grace.mul_f64(SAVE_FRACTION_OF_GRACE)
}

impl DrainEstimate {
    /// What is asked of the step at `now`, if its stage was asked to stop. Without a measurement a save is taken for a quarter
    /// of the time, and the rest of a step for nothing: it is given up when only the save's time is left.
    pub(super) fn stop(&self, requested_at: Option<Instant>, now: Instant) -> StopRequest {
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
        // steps of 20 s, a grace period of 30 s, of which 24 s are for step and save
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
        // slower than the one before it
        assert_eq!(stop(estimate, 10, 31), StopRequest::AfterStep);
        assert_eq!(stop(estimate, 10, 32), StopRequest::Immediately);
        // nothing is measured yet
        let first = DrainEstimate { step: None, save: None, ..estimate };
        assert_eq!((stop(first, 1, 19), stop(first, 1, 20)), (StopRequest::AfterStep, StopRequest::Immediately));
    }
}
