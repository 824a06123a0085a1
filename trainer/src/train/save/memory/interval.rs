//! The number of steps between two checkpoints in memory.

use stagecoach_api::job::StepInterval;

/// The largest share of time that checkpoints in memory may cost, if the interval is automatic.
const MAX_COST: f64 = 0.02;
/// The number of steps of each kind (with a copy in transit, and without one) that must be measured before the interval
/// depends on the measurements.
const MIN_SAMPLES: u32 = 8;
/// The interval until enough steps are measured. A copy is in transit during every second step, so that steps of both
/// kinds are measured.
const FIRST_INTERVAL: u64 = 2;
/// The longest automatic interval.
const MAX_INTERVAL: u64 = 1000;
/// The weight of a new measurement in the mean.
const WEIGHT: f64 = 0.1;

/// Decides after which steps a checkpoint in memory is taken.
#[derive(Debug)]
pub(super) struct CheckpointInterval {
    configured: StepInterval,
    /// The last step with a checkpoint, among the steps for which `is_due` was called.
    last: u64,
    /// The mean duration of steps with a copy in transit, including the copying itself, and of steps without one.
    busy: MeanSeconds,
    quiet: MeanSeconds,
}

/// A moving mean of durations, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct MeanSeconds {
    mean: f64,
    samples: u32,
}

impl MeanSeconds {
    fn add(&mut self, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        self.mean += (seconds - self.mean) * WEIGHT.max(1.0 / f64::from(self.samples));
    }
}

impl CheckpointInterval {
    pub(super) fn new(configured: StepInterval) -> CheckpointInterval {
        CheckpointInterval { configured, last: 0, busy: MeanSeconds::default(), quiet: MeanSeconds::default() }
    }

    /// Whether a checkpoint follows `step`. Call this once for each step, in order.
    pub(super) fn is_due(&mut self, step: u64) -> bool {
        let is_due = match self.configured {
            StepInterval::Steps(steps) => step.is_multiple_of(u64::from(steps)),
            StepInterval::Auto => step >= self.last + self.measured(),
        };
        if is_due {
            self.last = step;
        }
        is_due
    }

    /// Adds the duration of a step. `is_copying` is whether a copy was made before the step and was in transit during
    /// it.
    pub(super) fn add(&mut self, seconds: f64, is_copying: bool) {
        if is_copying { &mut self.busy } else { &mut self.quiet }.add(seconds);
    }

    /// Returns the shortest interval that costs no more than [`MAX_COST`], by the measurements so far.
    fn measured(&self) -> u64 {
        if self.busy.samples.min(self.quiet.samples) < MIN_SAMPLES {
            return FIRST_INTERVAL;
        }
        let cost = (self.busy.mean - self.quiet.mean) / self.quiet.mean;
        // the conversion turns NaN and negative numbers into 0
        ((cost / MAX_COST).ceil() as u64).clamp(1, MAX_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_interval_is_kept() {
        let mut interval = CheckpointInterval::new(StepInterval::Steps(3));
        let due: Vec<u64> = (5..14).filter(|&step| interval.is_due(step)).collect();
        assert_eq!(due, [6, 9, 12]);
    }

    #[test]
    fn the_measured_cost_decides() {
        for (cost, expected) in [(0.0, 1), (-0.1, 1), (0.019, 1), (0.03, 2), (0.099, 5), (1e9, MAX_INTERVAL)] {
            let mut interval = CheckpointInterval::new(StepInterval::Auto);
            assert_eq!((1..=4).filter(|&step| interval.is_due(step)).collect::<Vec<_>>(), [2, 4]);
            for _ in 0..MIN_SAMPLES {
                interval.add(1.0, false);
                assert_eq!(interval.measured(), FIRST_INTERVAL);
                interval.add(1.0 + cost, true);
            }
            assert_eq!(interval.measured(), expected, "{cost}");
            let due: Vec<u64> = (5..3000).filter(|&step| interval.is_due(step)).take(2).collect();
            assert_eq!(due[1] - due[0], expected, "{cost}");
        }
    }

    #[test]
    fn steps_without_time_choose_an_interval_all_the_same() {
        let mut interval = CheckpointInterval::new(StepInterval::Auto);
        (0..MIN_SAMPLES).for_each(|_| (interval.add(0.0, false), interval.add(0.0, true)).0);
        assert_eq!(interval.measured(), 1);
    }
}
