//! The learning rate, a function of the step alone.

use std::f64::consts::PI;

/// What follows warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Half a cosine from peak to floor (Loshchilov and Hutter 2017).
    Cosine,
    /// A straight line from peak to floor.
    Linear,
    /// The peak throughout.
    Constant,
    /// Warm-up, stable, decay (Hu et al. 2024): the peak, then a straight line to the floor over the last `fraction`.
    Wsd {
        /// Part of `decay_steps` that decays.
        fraction: f64,
    },
}

/// The learning rate of every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Reached at the end of warm-up.
    pub peak: f64,
    /// Never below this after warm-up.
    pub floor: f64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Where warm-up starts, as a fraction of the peak.
    pub warmup_start: f64,
    /// The step at which the floor is reached, counted from 0.
    pub decay_steps: u64,
    /// The shape between the two.
    pub decay: Decay,
}

impl LearningRate {
    /// The rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let LearningRate { peak, floor, warmup_steps, warmup_start, decay_steps, decay } = *self;
        if step < warmup_steps {
            return peak * (warmup_start + (1.0 - warmup_start) * step as f64 / warmup_steps as f64);
        }
        // how far from `from` to the end of the decay, in [0, 1]
        let progress = |from: f64| {
            let length = decay_steps as f64 - from;
            if length <= 0.0 { 1.0 } else { ((step as f64 - from) / length).clamp(0.0, 1.0) }
        };
        let between = |weight: f64| floor + (peak - floor) * weight;
        match decay {
            Decay::Constant => peak,
            Decay::Cosine => between(0.5 * (1.0 + (PI * progress(warmup_steps as f64)).cos())),
            Decay::Linear => between(1.0 - progress(warmup_steps as f64)),
            Decay::Wsd { fraction } => {
                let start = (decay_steps as f64 * (1.0 - fraction)).max(warmup_steps as f64);
                between(1.0 - progress(start))
            }
        }
    }

    /// The step, counted from 0, from which the rate no longer changes.
    pub fn settled(&self) -> u64 {
        match self.decay {
            Decay::Constant => self.warmup_steps,
            _ => self.decay_steps.max(self.warmup_steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(decay: Decay) -> LearningRate {
        LearningRate { peak: 1.0, floor: 0.1, warmup_steps: 10, warmup_start: 0.1, decay_steps: 110, decay }
    }

    #[test]
    fn shapes_pass_through_the_points_that_define_them() {
        let at = |decay, step| (rate(decay).at(step) * 1e6).round() / 1e6;
        for decay in [Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd { fraction: 0.2 }] {
            assert_eq!(at(decay, 0), 0.1);
            assert_eq!(at(decay, 5), 0.55);
            assert_eq!(at(decay, 10), 1.0);
        }
        assert_eq!((at(Decay::Cosine, 60), at(Decay::Cosine, 110), at(Decay::Cosine, 500)), (0.55, 0.1, 0.1));
        assert_eq!((at(Decay::Linear, 35), at(Decay::Linear, 110)), (0.775, 0.1));
        assert_eq!((at(Decay::Constant, 110), at(Decay::Constant, 5000)), (1.0, 1.0));
        let wsd = Decay::Wsd { fraction: 0.2 };
        assert_eq!((at(wsd, 88), at(wsd, 99), at(wsd, 110)), (1.0, 0.55, 0.1));
    }

    proptest! {
        #[test]
        fn a_rate_stays_between_floor_and_peak_after_warm_up(step in 10u64..1000, fraction in 0.0..1.0) {
            for decay in [Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd { fraction }] {
                let lr = rate(decay).at(step);
                prop_assert!((0.1..=1.0).contains(&lr), "{decay:?} {lr}");
            }
        }

        #[test]
        fn a_settled_rate_changes_no_more(warmup_steps in 0u64..200, after in 0u64..1000, fraction in 0.0..1.0) {
            for decay in [Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd { fraction }] {
                let rate = LearningRate { warmup_steps, ..rate(decay) };
                prop_assert_eq!(rate.at(rate.settled()), rate.at(rate.settled() + after), "{:?}", decay);
            }
        }
    }
}
