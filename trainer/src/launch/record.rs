//! What outlives the launcher: `state.json` in the job's folder.

use std::{fs, io};

use serde::{Deserialize, Serialize};
use stagecoach_lifecycle::{AttemptPhase, JobState};

use super::LaunchError;
use crate::folder::{JobFolder, write};

/// The job's UID and what `lifecycle` remembers: attempt, budget, last failure.
///
/// A launcher that dies while the volume doesn't take its record leaves an older one, or none: the next run then counts
/// restarts and attempts from there, and may give an attempt's number, or the job another UID, once more. Nothing rests
/// on these: the attempt's stages died with their launcher, and who may write checkpoints is decided by the fence alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Given by the first run.
    pub job_uid: String,
    /// As `lifecycle::decide` returned it last.
    pub state: JobState,
}

impl Record {
    /// Reads the folder's record for a new run, or makes the first one.
    ///
    /// # Errors
    /// The volume's; a record that isn't one.
    pub fn open(folder: &JobFolder) -> Result<Self, LaunchError> {
        let path = folder.record();
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { job_uid: fresh_uid(), state: JobState::default() });
            }
            read => read.map_err(LaunchError::storage("read", &path))?,
        };
        let record: Self =
            serde_json::from_slice(&bytes).map_err(|error| LaunchError::Record { path, problem: error.to_string() })?;
        Ok(Self { state: resumed(record.state), ..record })
    }

    /// Writes it.
    ///
    /// # Errors
    /// The volume's.
    pub fn save(&self, folder: &JobFolder) -> Result<(), LaunchError> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| LaunchError::Record { path: folder.record(), problem: error.to_string() })?;
        Ok(write(&folder.record(), &json)?)
    }
}

/// The state in which a new run finds the job. Stages die with their launcher, and the lock says that it is gone: nothing
/// runs, whatever the record says. Someone who runs a job that had ended gives it a new budget; attempts count on.
fn resumed(state: JobState) -> JobState {
    if state.outcome().is_some() {
        return JobState {
            attempt: state.attempt,
            checkpoint_step: state.checkpoint_step,
            last_failure: state.last_failure,
            ..JobState::default()
        };
    }
    JobState { attempt_phase: AttemptPhase::Idle, started_at: None, ..state }
}

/// 128 random bits in hexadecimal.
pub(super) fn fresh_uid() -> String {
    stagecoach_files::random_hex() + &stagecoach_files::random_hex()
}

#[cfg(test)]
mod tests {
    use stagecoach_lifecycle::{Attempt, JobFailureReason, JobOutcome, UnixMillis};

    use super::*;

    #[test]
    fn attempts_count_on_and_an_end_gives_a_new_budget() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(workspace.path(), None).unwrap();
        let mut record = Record::open(&folder).unwrap();
        record.state.attempt = Attempt { number: 4, stages: 3, revision: 0 };
        record.state.budget.counted_since_checkpoint = 2;
        record.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(9), all_created: true };
        record.save(&folder).unwrap();
        let again = Record::open(&folder).unwrap();
        assert_eq!((&again.job_uid, again.state.attempt.number), (&record.job_uid, 4));
        assert_eq!((again.state.attempt_phase, again.state.budget.counted_since_checkpoint), (AttemptPhase::Idle, 2));

        record.state.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted));
        record.save(&folder).unwrap();
        let again = Record::open(&folder).unwrap();
        assert_eq!(
            (again.state.attempt_phase, again.state.budget.counted_since_checkpoint, again.state.attempt.number),
            (AttemptPhase::Idle, 0, 4)
        );

        fs::write(folder.record(), "{").unwrap();
        assert!(Record::open(&folder).unwrap_err().to_string().contains("--fresh"));
        assert_ne!(fresh_uid(), fresh_uid());
    }
}
