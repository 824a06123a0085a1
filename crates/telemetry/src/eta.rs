//! Estimates the time of the remaining steps from a moving average of the finished steps.

use super::StepRecord;

/// The weight of the newest step in the average.
const SMOOTHING: f64 = 0.1;

/// An exponential moving average of the seconds per step, bias-corrected as Adam's moments are.
#[derive(Clone, Debug, Default)]
pub(super) struct EtaEstimator {
    average: f64,
    /// The sum of the weights of all steps in `average`. The sum is less than 1 at first.
    weight: f64,
}

impl EtaEstimator {
    pub(crate) fn add(&mut self, record: &StepRecord) {
        if record.seconds.is_finite() {
            self.average += SMOOTHING * (record.seconds - self.average);
            self.weight += SMOOTHING * (1.0 - self.weight);
        }
    }

    /// Returns the seconds that `steps` more steps will take; `None` before the first step.
    pub(super) fn seconds(&self, steps: u64) -> Option<f64> {
        (self.weight > 0.0).then(|| self.average / self.weight * steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_unbiased_from_the_first_step_on() {
        let mut eta = EtaEstimator::default();
        assert_eq!(eta.seconds(10), None);
        for _ in 0..3 {
            eta.add(&StepRecord { seconds: 0.5, ..StepRecord::default() });
            assert!((eta.seconds(10).unwrap() - 5.0).abs() < 1e-9);
        }
        eta.add(&StepRecord { seconds: f64::NAN, ..StepRecord::default() });
        assert!((eta.seconds(10).unwrap() - 5.0).abs() < 1e-9);
    }
}
