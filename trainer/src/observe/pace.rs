//! How fast steps go, smoothed, and when the last one will be done.

use super::StepRecord;

/// The newest step's share in the mean.
const SHARE: f64 = 0.1;

/// A moving mean of the steps' seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    mean: f64,
    /// The weight of all that was seen; it makes the mean right from the first step on.
    weight: f64,
}

impl Pace {
    pub(super) fn saw(&mut self, record: &StepRecord) {
        if record.seconds.is_finite() {
            self.mean += SHARE * (record.seconds - self.mean);
            self.weight += SHARE * (1.0 - self.weight);
        }
    }

    /// Seconds until so many more steps are done; none before the first.
    pub(super) fn eta(&self, steps: u64) -> Option<f64> {
        (self.weight > 0.0).then(|| self.mean / self.weight * steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_counts_in_full() {
        let mut pace = Pace::default();
        assert_eq!(pace.eta(10), None);
        for _ in 0..3 {
            pace.saw(&StepRecord { seconds: 0.5, ..StepRecord::default() });
            assert!((pace.eta(10).unwrap() - 5.0).abs() < 1e-9);
        }
        pace.saw(&StepRecord { seconds: f64::NAN, ..StepRecord::default() });
        assert!((pace.eta(10).unwrap() - 5.0).abs() < 1e-9);
    }
}
