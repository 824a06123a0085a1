//! The time for which the steps of a run waited for their data.

use std::fmt;

use stagecoach_display::{duration, percent};

use super::StepRecord;

/// The smallest share of a step's time at which the step's wait for data is notable. A smaller share does not matter
/// for the training time.
const NOTABLE_SHARE: f64 = 0.01;
/// The shortest notable wait, in seconds. A shorter wait is noise of the machine.
const NOTABLE_SECONDS: f64 = 0.1;

/// The total wait of several steps for their data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataWait {
    /// The wall seconds that the leader waited.
    pub seconds: f64,
    /// The wait divided by the time of the steps, 0 to 1.
    pub share: f64,
}

impl DataWait {
    /// Returns the total wait of `steps`, or `None` if no step measured its wait. An item has the seconds of the step's
    /// wait, if the step measured them, and the seconds of the whole step.
    pub fn of_steps(steps: impl IntoIterator<Item = (Option<f64>, f64)>) -> Option<DataWait> {
        let measured = steps.into_iter().filter_map(|(waited, seconds)| Some((waited?, seconds)));
        let (waited, seconds) = measured.reduce(|(waited, seconds), step| (waited + step.0, seconds + step.1))?;
        Some(DataWait { seconds: waited, share: if seconds > 0.0 { waited / seconds } else { 0.0 } })
    }

    /// Returns the total wait of a run's steps; `None` if no step measured its wait.
    pub fn of_run(records: &[StepRecord]) -> Option<DataWait> {
        DataWait::of_steps(records.iter().map(|record| (record.data_wait_seconds, record.seconds)))
    }

    /// Returns a sentence about the wait of one step. The step's timeline lacks the wait, because the timeline begins
    /// with the first computation.
    pub fn in_step(seconds: f64) -> String {
        format!("stage 0 waited {} for data before the step's first computation", duration(seconds))
    }

    /// Returns the wait of a step, if the wait is a notable part of the step's time.
    pub(crate) fn notable(record: &StepRecord) -> Option<DataWait> {
        let wait = DataWait::of_steps([(record.data_wait_seconds, record.seconds)])?;
        (wait.seconds >= NOTABLE_SECONDS && wait.share >= NOTABLE_SHARE).then_some(wait)
    }
}

impl fmt::Display for DataWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} of the steps' time", duration(self.seconds), percent(self.share))
    }
}

#[cfg(test)]
mod tests {
    use super::super::event_formatter::tests::record;
    use super::*;

    fn waited(data_wait_seconds: Option<f64>, seconds: f64) -> StepRecord {
        StepRecord { data_wait_seconds, seconds, ..record(7) }
    }

    #[test]
    fn a_run_has_the_wait_of_the_steps_that_measured_it() {
        let records = [waited(None, 100.0), waited(Some(0.0), 2.0), waited(Some(1.5), 3.0), waited(Some(0.5), 3.0)];
        assert_eq!(DataWait::of_run(&records), Some(DataWait { seconds: 2.0, share: 0.25 }));
        assert_eq!(DataWait::of_run(&records).unwrap().to_string(), "2.0s, 25% of the steps' time");
        assert_eq!((DataWait::of_run(&records[..1]), DataWait::of_run(&[])), (None, None));
        assert_eq!(DataWait::of_run(&[waited(Some(0.0), 0.0)]), Some(DataWait { seconds: 0.0, share: 0.0 }));
    }

    #[test]
    fn a_wait_is_notable_from_a_tenth_of_a_second_and_a_hundredth_of_the_step() {
        for (seconds, step, is_notable) in [
            (Some(0.1), 10.0, true),
            (Some(0.09), 0.1, false),
            (Some(0.1), 10.1, false),
            (Some(3.2), 4.0, true),
            (Some(f64::NAN), 4.0, false),
            (Some(0.0), 0.0, false),
            (None, 4.0, false),
        ] {
            let found = DataWait::notable(&waited(seconds, step));
            assert_eq!(found.is_some(), is_notable, "{seconds:?} of {step}");
        }
    }
}
