//! Finds spikes: steps whose loss or gradient norm is far above the values of the preceding steps.

use serde::Serialize;
use stagecoach_telemetry::StepRecord;

/// The rule that decides whether a step is a spike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpikeRule {
    /// The number of preceding steps with which a step is compared.
    pub window: usize,
    /// The number of deviations above the median beyond which a step is a spike. [`find_spikes`] defines the deviation.
    pub deviations: f64,
}

/// The smallest number of preceding steps with which a step is compared.
const MIN_STEPS: usize = 8;
/// The minimum of a deviation, as a share of the median. If the preceding steps are nearly equal, a slightly higher
/// step is therefore not a spike.
const MIN_DEVIATION: f64 = 0.01;
/// The standard deviation of a normal distribution, divided by the median of its absolute deviations.
const NORMAL: f64 = 1.4826;

/// A step that is a spike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spike {
    /// The step.
    pub step: u64,
    /// The number of deviations of the loss above the median of the preceding steps; infinite (null in JSON) if the
    /// loss is not finite.
    pub loss_deviations: f64,
    /// The number of deviations of the gradient norm above the median of the preceding steps; infinite (null in JSON)
    /// if the norm is not finite.
    pub norm_deviations: f64,
}

impl Spike {
    /// Whether the gradient norm exceeds its median by more deviations than the loss exceeds its own median.
    pub fn is_of_norm(&self) -> bool {
        self.norm_deviations > self.loss_deviations
    }

    /// The larger of the two deviations.
    pub fn deviations(&self) -> f64 {
        self.loss_deviations.max(self.norm_deviations)
    }
}

/// Returns the spikes among `steps`, ascending. A step is a spike if its loss or gradient norm is not finite, or above
/// `median + deviations * D` of the `window` steps before it. D is 1.4826 times the median of the absolute deviations
/// of these steps from their median, and at least 1 % of that median. Only steps with finite values count among the
/// preceding steps. If there are fewer than `min(8, window)` such steps, only a step with a value that is not finite is
/// a spike.
pub fn find_spikes(steps: &[StepRecord], rule: SpikeRule) -> Vec<Spike> {
    let losses: Vec<Option<f64>> = steps.iter().map(|step| step.loss.map(f64::from)).collect();
    let norms: Vec<Option<f64>> = steps.iter().map(|step| step.gradient_norm).collect();
    let spikes = steps.iter().enumerate().map(|(at, step)| Spike {
        step: step.step,
        loss_deviations: above(&losses, at, rule.window),
        norm_deviations: above(&norms, at, rule.window),
    });
    spikes.filter(|spike| spike.deviations() > rule.deviations).collect()
}

/// Returns the number of deviations of value `at` above the median of the `window` values before it. Returns 0 if too
/// few values precede it.
fn above(values: &[Option<f64>], at: usize, window: usize) -> f64 {
    let Some(value) = values[at].filter(|value| value.is_finite()) else { return f64::INFINITY };
    let before = values[at.saturating_sub(window)..at].iter().flatten().copied().filter(|value| value.is_finite());
    let before: Vec<f64> = before.collect();
    if before.len() < MIN_STEPS.min(window) {
        return 0.0;
    }
    let middle = median(before.clone());
    let deviation = NORMAL * median(before.into_iter().map(|value| (value - middle).abs()).collect());
    (value - middle) / deviation.max(MIN_DEVIATION * middle.abs()).max(f64::MIN_POSITIVE)
}

/// Returns the median of at least one value. For an even number of values, it is the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: SpikeRule = SpikeRule { window: 50, deviations: 6.0 };

    fn records(losses: &[f64]) -> Vec<StepRecord> {
        let record = |(index, &loss): (usize, &f64)| StepRecord {
            step: 1 + index as u64,
            loss: loss.is_finite().then_some(loss as f32),
            gradient_norm: Some(0.5),
            ..StepRecord::default()
        };
        losses.iter().enumerate().map(record).collect()
    }

    fn found(losses: &[f64]) -> Vec<u64> {
        find_spikes(&records(losses), RULE).iter().map(|spike| spike.step).collect()
    }

    /// Returns a value between -1 and 1.
    fn noise(index: usize) -> f64 {
        (index as f64 * 1.618_033_988_75).fract() * 2.0 - 1.0
    }

    #[test]
    fn what_is_far_above_the_steps_before_is_found_and_a_fall_is_not() {
        let mut losses: Vec<f64> = (0..200).map(|i| 3.0 + 4.0 * (-(i as f64) / 30.0).exp() + 0.05 * noise(i)).collect();
        assert!(found(&losses).is_empty());
        losses[120] = 4.5;
        losses[121] = 4.2;
        losses[160] = f64::NAN;
        assert_eq!(found(&losses), [121, 122, 161]);
        let mut steps = records(&losses);
        steps[60].gradient_norm = Some(9.0);
        let spikes = find_spikes(&steps, RULE);
        assert_eq!((spikes[0].step, spikes[0].loss_deviations < 6.0), (61, true));
        assert!(spikes[0].is_of_norm() && !spikes[1].is_of_norm());
        assert!(spikes[0].deviations() > 100.0 && spikes[3].deviations() == f64::INFINITY);
    }

    #[test]
    fn too_few_steps_and_none_have_no_spike() {
        assert!(found(&[]).is_empty());
        assert!(found(&[1.0, 1.0, 1.0, 900.0]).is_empty());
        assert!(found(&[3.0; 60]).is_empty());
    }

    proptest! {
        #[test]
        fn scale_and_shift_change_nothing_and_one_spike_hides_no_other(
            at in 60usize..90, scale in 0.1..100f64, height in 1.0..50f64,
        ) {
            let losses = |spikes: &[usize]| -> Vec<f64> {
                let height = |i| if spikes.contains(&i) { height } else { 0.0 };
                (0..100).map(|i| scale * (2.0 + 0.02 * noise(i) + height(i))).collect()
            };
            prop_assert_eq!(found(&losses(&[])), Vec::<u64>::new());
            prop_assert_eq!(found(&losses(&[at])), vec![at as u64 + 1]);
            prop_assert_eq!(found(&losses(&[at, at + 5])), vec![at as u64 + 1, at as u64 + 6]);
        }
    }
}
