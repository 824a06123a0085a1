//! The learning rate, a function of the step alone.

use std::f64::consts::PI;

use stagecoach_api::job::{LearningRateSchedule, LearningRateSpec};

/// The learning rate of every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The job's specification.
    pub spec: LearningRateSpec,
    /// The step, counted from 0, at which the decay ends: the specified step, or the step that was fixed when training
    /// began.
    pub decay_steps: u64,
}

impl LearningRate {
    /// Returns the learning rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let LearningRateSpec { peak, floor, warmup_steps, warmup_start, schedule, decay_fraction, decay_steps: _ } =
            self.spec;
        if step < warmup_steps {
            return peak * (warmup_start + (1.0 - warmup_start) * step as f64 / warmup_steps as f64);
        }
        // progress of a decay that begins at step `from`, in [0, 1]
        let progress = |from: f64| {
            let length = self.decay_steps as f64 - from;
            if length <= 0.0 { 1.0 } else { ((step as f64 - from) / length).clamp(0.0, 1.0) }
        };
        let interpolate = |weight: f64| floor + (peak - floor) * weight;
        match schedule {
            LearningRateSchedule::Constant => peak,
            // the schedule of Loshchilov and Hutter 2017
            LearningRateSchedule::Cosine => interpolate(0.5 * (1.0 + (PI * progress(warmup_steps as f64)).cos())),
            LearningRateSchedule::Linear => interpolate(1.0 - progress(warmup_steps as f64)),
            // the schedule of Hu et al. 2024
            LearningRateSchedule::Wsd => {
                let start = (self.decay_steps as f64 * (1.0 - decay_fraction)).max(warmup_steps as f64);
                interpolate(1.0 - progress(start))
            }
        }
    }

    /// Returns the first step, counted from 0, from which the learning rate is constant.
    pub fn constant_from(&self) -> u64 {
        match self.spec.schedule {
            LearningRateSchedule::Constant => self.spec.warmup_steps,
            _ => self.decay_steps.max(self.spec.warmup_steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use LearningRateSchedule::{Constant, Cosine, Linear, Wsd};
    use proptest::prelude::*;

    use super::*;

    fn rate(schedule: LearningRateSchedule, warmup_steps: u64, decay_fraction: f64) -> LearningRate {
        let (peak, floor, warmup_start) = (1.0, 0.1, 0.1);
        let spec =
            LearningRateSpec { peak, floor, warmup_steps, warmup_start, schedule, decay_fraction, decay_steps: None };
        LearningRate { spec, decay_steps: 110 }
    }

    #[test]
    fn schedules_pass_through_the_points_that_define_them() {
        let at = |schedule, step| (rate(schedule, 10, 0.2).at(step) * 1e6).round() / 1e6;
        for schedule in [Cosine, Linear, Constant, Wsd] {
            assert_eq!(at(schedule, 0), 0.1);
            assert_eq!(at(schedule, 5), 0.55);
            assert_eq!(at(schedule, 10), 1.0);
        }
        assert_eq!((at(Cosine, 60), at(Cosine, 110), at(Cosine, 500)), (0.55, 0.1, 0.1));
        assert_eq!((at(Linear, 35), at(Linear, 110)), (0.775, 0.1));
        assert_eq!((at(Constant, 110), at(Constant, 5000)), (1.0, 1.0));
        assert_eq!((at(Wsd, 88), at(Wsd, 99), at(Wsd, 110)), (1.0, 0.55, 0.1));
    }

    proptest! {
        #[test]
        fn a_rate_stays_between_floor_and_peak_after_warm_up(step in 10u64..1000, fraction in 0.0..1.0) {
            for schedule in [Cosine, Linear, Constant, Wsd] {
                let lr = rate(schedule, 10, fraction).at(step);
                prop_assert!((0.1..=1.0).contains(&lr), "{schedule:?} {lr}");
            }
        }

        #[test]
        fn the_rate_is_constant_where_it_says_so(warmup_steps in 0u64..200, after in 0u64..1000, fraction in 0.0..1.0) {
            for schedule in [Cosine, Linear, Constant, Wsd] {
                let rate = rate(schedule, warmup_steps, fraction);
                let from = rate.constant_from();
                prop_assert_eq!(rate.at(from), rate.at(from + after), "{:?}", schedule);
            }
        }
    }
}
