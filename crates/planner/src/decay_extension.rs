//! The learning rate of a job to which the user adds steps. The decay still ends at the old number of steps. The added
//! steps therefore train at the floor (the lowest learning rate) unless the job specifies a decay for them.

use stagecoach_api::job::LearningRateSchedule;
use stagecoach_engine::optimize::LearningRate;

use super::trainer_state::{DecayExtension, TrainerState};

const FIELD: &str = "spec.training.learningRate.decaySteps";

impl TrainerState {
    /// Determines and stores the step at which the decay ends, for a job of `steps` steps in total that resumes from
    /// this state. `asked` is the job's `decaySteps`, and `rate` has the job's other settings of the learning rate. The
    /// old steps keep their decay even if training has not reached them, so the result does not depend on when the user
    /// adds steps. If the job has added steps, returns a description of their learning rate.
    ///
    /// # Errors
    /// Returns an error if the job changes its decay without adding steps, or if the learning rate of added steps would
    /// be 0 and the job does not specify `decaySteps`.
    pub fn fix_decay(&mut self, steps: u64, asked: Option<u64>, rate: LearningRate) -> Result<Option<String>, String> {
        if self.step == 0 {
            (self.decay_steps, self.length) = (asked.unwrap_or(steps), steps);
            return Ok(None);
        }
        let fixed = self.decay_steps_at(u64::MAX);
        let length = if self.length == 0 { fixed } else { self.length };
        if steps <= length {
            return match asked {
                Some(asked) if asked != fixed => Err(format!(
                    "{FIELD} is {asked}, and this job trains with a decay that ends at step {fixed}: set it to {fixed} or \
                     leave it out; only steps beyond the {length} that the job has can have another decay"
                )),
                _ => Ok(None),
            };
        }
        let from = length.max(self.step);
        let rate = LearningRate { decay_steps: asked.unwrap_or(fixed), ..rate };
        let constant_from = rate.constant_from();
        if asked.is_none() && constant_from < steps && rate.at(constant_from) == 0.0 {
            return Err(format!(
                "the learning rate of {} would be 0, since its decay ends at step {fixed}: set {FIELD} to the step at which \
                 the decay of the added steps ends, such as {steps}, or to {constant_from} to train them at 0",
                range(constant_from.max(from), steps)
            ));
        }
        if let Some(asked) = asked {
            self.length = steps;
            self.extensions.extend((asked != fixed).then_some(DecayExtension { from, decay_steps: asked }));
        }
        Ok((from < steps).then(|| describe_rate(rate, from, steps, asked.is_some())))
    }
}

/// Describes the learning rate of the steps from `from` on, with the reason.
fn describe_rate(rate: LearningRate, from: u64, steps: u64, asked: bool) -> String {
    let [first, last] = [from, steps - 1].map(|step| rate.at(step));
    let course = if first == last {
        format!("is {}", number(first))
    } else {
        format!("goes from {} to {}", number(first), number(last))
    };
    let end = rate.decay_steps;
    let why = match rate.spec.schedule {
        LearningRateSchedule::Constant => "its schedule is Constant".to_owned(),
        _ if asked => format!("{FIELD} is {end}"),
        _ => format!("its decay ends at step {end}; set {FIELD} to change it"),
    };
    format!("the learning rate of {} {course}, since {why}", range(from, steps))
}

/// Describes the steps after the first `from` steps. The text counts steps from 1.
fn range(from: u64, steps: u64) -> String {
    if from + 1 == steps { format!("step {steps}") } else { format!("steps {} to {steps}", from + 1) }
}

fn number(rate: f64) -> String {
    if rate == 0.0 { "0".into() } else { format!("{rate:.1e}") }
}

#[cfg(test)]
mod tests {
    use LearningRateSchedule::{Constant, Cosine, Linear, Wsd};
    use stagecoach_api::job::LearningRateSpec;

    use super::*;

    const FLOOR: f64 = 1e-3;

    fn rate(schedule: LearningRateSchedule, floor: f64, warmup_steps: u64) -> LearningRate {
        let (peak, warmup_start, decay_fraction) = (1e-2, 0.0, 0.2);
        let spec =
            LearningRateSpec { peak, floor, warmup_steps, warmup_start, schedule, decay_fraction, decay_steps: None };
        LearningRate { spec, decay_steps: 0 }
    }

    /// Returns the state of a job that has trained `step` of `steps` steps.
    fn trained(step: u64, steps: u64, asked: Option<u64>) -> TrainerState {
        let mut state = TrainerState::default();
        assert_eq!(state.fix_decay(steps, asked, rate(Cosine, FLOOR, 0)), Ok(None));
        TrainerState { step, ..state }
    }

    #[test]
    fn an_unchanged_job_keeps_its_decay_without_a_note() {
        for (first, then) in [(None, None), (None, Some(10)), (Some(20), Some(20)), (Some(20), None)] {
            let before = trained(4, 10, first);
            for steps in [10, 8] {
                let mut state = before.clone();
                assert_eq!(state.fix_decay(steps, then, rate(Cosine, 0.0, 0)), Ok(None));
                assert_eq!(state, before);
            }
        }
    }

    #[test]
    fn another_decay_without_more_steps_is_refused() {
        for steps in [10, 8] {
            let message = trained(4, 10, None).fix_decay(steps, Some(20), rate(Cosine, FLOOR, 0)).unwrap_err();
            assert!(message.contains("decaySteps is 20") && message.contains("ends at step 10"), "{message}");
        }
    }

    #[test]
    fn an_extension_at_a_rate_of_zero_is_refused_unless_asked_for() {
        let zero = |schedule, warmup| trained(4, 4, None).fix_decay(10, None, rate(schedule, 0.0, warmup));
        for schedule in [Cosine, Linear, Wsd] {
            let message = zero(schedule, 0).unwrap_err();
            let expected = "the learning rate of steps 5 to 10 would be 0, since its decay ends at step 4: set \
                         spec.training.learningRate.decaySteps to the step at which the decay of the added steps ends, such \
                         as 10, or to 4 to train them at 0";
            assert_eq!(message, expected);
            // if the warm-up is longer than the original job, the message is about the steps after the warm-up
            let message = zero(schedule, 6).unwrap_err();
            assert!(message.contains("of steps 7 to 10 would be 0") && message.contains("or to 6"), "{message}");
            let mut asked = trained(4, 4, None);
            let message = asked.fix_decay(10, Some(4), rate(schedule, 0.0, 0)).unwrap().unwrap();
            assert_eq!(
                message,
                "the learning rate of steps 5 to 10 is 0, since spec.training.learningRate.decaySteps is 4"
            );
            assert_eq!(asked.decay_steps_at(9), 4);
        }
        assert!(zero(Constant, 0).is_ok());
        // the error also occurs if the job is extended before it has trained all its original steps
        let message = trained(2, 4, None).fix_decay(10, None, rate(Cosine, 0.0, 0)).unwrap_err();
        assert!(message.contains("of steps 5 to 10 would be 0"), "{message}");
        // the decay that the job specified earlier ends one step before the new last step
        let message = trained(4, 4, Some(9)).fix_decay(10, None, rate(Cosine, 0.0, 0)).unwrap_err();
        assert!(message.contains("of step 10 would be 0"), "{message}");
    }

    #[test]
    fn an_extension_says_its_rate() {
        let describe = |first, asked, schedule, warmup| {
            let mut state = trained(4, 4, first);
            state.fix_decay(10, asked, rate(schedule, FLOOR, warmup)).unwrap().unwrap()
        };
        let floor = "the learning rate of steps 5 to 10 is 1.0e-3, since its decay ends at step 4; set \
                     spec.training.learningRate.decaySteps to change it";
        for schedule in [Cosine, Linear, Wsd] {
            assert_eq!(describe(None, None, schedule, 0), floor);
        }
        let ends = |first, asked, schedule, warmup, course: &str, why: &str| {
            let message = describe(first, asked, schedule, warmup);
            assert!(message.contains(course) && message.contains(why), "{message}");
        };
        ends(None, None, Constant, 0, "steps 5 to 10 is 1.0e-2,", "since its schedule is Constant");
        ends(
            None,
            Some(10),
            Linear,
            0,
            "goes from 6.4e-3 to 1.9e-3,",
            "since spec.training.learningRate.decaySteps is 10",
        );
        ends(None, Some(10), Wsd, 0, "goes from 1.0e-2 to 5.5e-3,", "decaySteps is 10");
        ends(None, None, Linear, 8, "goes from 5.0e-3 to 1.0e-3,", "its decay ends at step 4");
        ends(Some(20), None, Linear, 0, "goes from 8.2e-3 to 6.0e-3,", "its decay ends at step 20");
        ends(Some(20), Some(20), Linear, 0, "goes from 8.2e-3 to 6.0e-3,", "decaySteps is 20");
    }

    #[test]
    fn the_steps_that_the_job_had_keep_their_decay() {
        let rate = rate(Cosine, FLOOR, 0);
        let [early, late] = [2, 4].map(|step| {
            let mut state = trained(step, 4, None);
            state.fix_decay(10, Some(10), rate).unwrap();
            (0..10).map(|step| state.decay_steps_at(step)).collect::<Vec<_>>()
        });
        assert_eq!(early, [4, 4, 4, 4, 10, 10, 10, 10, 10, 10]);
        assert_eq!(late, early);
    }

    #[test]
    fn an_extension_may_get_a_decay_of_its_own_later_and_another_extension_another_one() {
        let rate = rate(Cosine, FLOOR, 0);
        let mut state = trained(4, 4, None);
        assert!(state.fix_decay(10, None, rate).unwrap().is_some());
        state.step = 6;
        assert!(state.fix_decay(10, Some(10), rate).unwrap().is_some());
        state.step = 8;
        assert_eq!(state.fix_decay(10, Some(10), rate), Ok(None));
        assert!(state.fix_decay(10, Some(12), rate).is_err());
        assert!(state.fix_decay(12, Some(12), rate).unwrap().is_some());
        let ends: Vec<u64> = (0..12).map(|step| state.decay_steps_at(step)).collect();
        assert_eq!(ends, [4, 4, 4, 4, 4, 4, 10, 10, 10, 10, 12, 12]);
    }
}
