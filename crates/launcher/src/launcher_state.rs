//! `state.json` in the job's folder: the launcher's state that persists between runs.

use serde::{Deserialize, Serialize};
use stagecoach_files::{random_hex, read_if_exists};
use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, JobState, UnixMillis};

use super::LaunchError;
use crate::folder::{JobFolder, write_file};

/// The state that a launcher stores: the job's UID, the state of `lifecycle` (attempt, budget, last failure), and the
/// recoveries from failures.
///
/// If a launcher dies while the volume can't be written, the file contains an older state or is missing. The next run
/// may then reuse an attempt's number, or give the job another UID. Both are harmless: the stages died with their
/// launcher, and only the stages that created the newest fence (a folder beside the checkpoints) may write checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LauncherState {
    /// The job's UID, which the first run chooses.
    pub(crate) job_uid: String,
    /// The last state that `lifecycle::decide` returned.
    pub state: JobState,
    /// The recovery from the last failure in `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recovery: Option<Recovery>,
    /// The number of replicas of the pipeline that train now.
    #[serde(default)]
    pub(crate) training_replicas: u32,
    /// The failures before the last one, the newest last: at most [`MAX_EARLIER`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<EarlierFailure>,
}

/// The maximum number of earlier failures that the state keeps.
const MAX_EARLIER: usize = 20;

/// A failure before the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EarlierFailure {
    /// The root cause of the failure.
    pub(crate) failure: AttemptFailure,
    /// The recovery from the failure.
    pub(crate) recovery: Recovery,
}

/// The state of training when a stage failed, and the step and time at which training resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The time of the failure: its `AttemptFailure::failed_at`.
    pub(crate) failed_at: UnixMillis,
    /// The last step that was finished before the failure.
    pub(crate) finished_step: Option<u64>,
    /// The first step that was trained afterwards; `None` until training resumes.
    pub(crate) first_step: Option<u64>,
    /// The time at which replacement processes started, or at which a spare (a waiting process) replaced a stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<UnixMillis>,
    /// The time at which all members had joined the group and loaded their state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<UnixMillis>,
    /// The time at which `first_step` was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step_at: Option<UnixMillis>,
}

impl Recovery {
    /// Records the time at which a replacement process started, or a spare replaced a stage. Until all members of the
    /// group have loaded their state, a later start replaces this time.
    pub(super) fn note_started(&mut self, now: UnixMillis) {
        if self.loaded_at.is_none() {
            self.started_at = Some(now);
        }
    }
}

impl LauncherState {
    /// Loads the stored state for a new run, or creates a state for the first run.
    ///
    /// # Errors
    /// Returns an error if the volume fails, or if the file does not contain a launcher's state.
    pub fn load(folder: &JobFolder) -> Result<Self, LaunchError> {
        Ok(match Self::stored(folder)? {
            Some(stored) => Self { state: prepare_for_new_run(stored.state), training_replicas: 0, ..stored },
            None => Self {
                job_uid: random_hex(),
                state: JobState::default(),
                recovery: None,
                training_replicas: 0,
                earlier: Vec::new(),
            },
        })
    }

    /// Returns the state that the last launcher stored, if any.
    ///
    /// # Errors
    /// Returns the errors of [`LauncherState::load`].
    pub(super) fn stored(folder: &JobFolder) -> Result<Option<Self>, LaunchError> {
        let path = folder.launcher_state();
        let bytes = read_if_exists(&path).map_err(LaunchError::storage("read", &path))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let stored = serde_json::from_slice(&bytes);
        stored.map(Some).map_err(|error| LaunchError::State { path, problem: error.to_string() })
    }

    /// Starts the recovery from the failure `next`. The caller must not have stored `next` as the last failure yet. The
    /// previous failure and its recovery become an earlier failure.
    pub(super) fn begin_recovery(&mut self, next: &AttemptFailure, recovery: Recovery) {
        let last = self.state.last_failure.clone().zip(self.recovery.replace(recovery));
        let Some((failure, recovery)) = last.filter(|(last, _)| !is_same_failure(last, next)) else { return };
        self.earlier.push(EarlierFailure { failure, recovery });
        self.earlier.drain(..self.earlier.len().saturating_sub(MAX_EARLIER));
    }

    /// Stores the state.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub(crate) fn save(&self, folder: &JobFolder) -> Result<(), LaunchError> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| LaunchError::State { path: folder.launcher_state(), problem: error.to_string() })?;
        Ok(write_file(&folder.launcher_state(), &json)?)
    }
}

/// Whether both failures describe the end of the same process. They may differ in details, such as the time.
pub(super) fn is_same_failure(failure: &AttemptFailure, other: &AttemptFailure) -> bool {
    let process = |failure: &AttemptFailure| (failure.attempt, failure.rank, failure.incarnation);
    process(failure) == process(other)
}

/// Changes the stored state for a new run. No stage of the stored attempt runs, since stages die with their launcher
/// and this launcher holds the lock. A finished job gets a new restart budget. The attempt numbers continue.
fn prepare_for_new_run(state: JobState) -> JobState {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use stagecoach_api::contract::Mesh;
    use stagecoach_lifecycle::{Attempt, FailureReason, JobFailureReason, JobOutcome};

    use super::*;

    #[test]
    fn earlier_failures_are_kept_with_what_followed_them() {
        let workspace = tempfile::tempdir().unwrap();
        let mut stored = LauncherState::load(&JobFolder::open(workspace.path(), None).unwrap()).unwrap();
        let fail = |stored: &mut LauncherState, attempt: u64, at: u64| {
            let failure = AttemptFailure {
                attempt,
                rank: Some(1),
                mesh: None,
                incarnation: 0,
                reason: FailureReason::Killed,
                exit_code: None,
                kind: None,
                step: None,
                action: None,
                message: String::new(),
                failed_at: UnixMillis(at),
                uncounted: false,
            };
            stored.begin_recovery(&failure, Recovery { failed_at: failure.failed_at, ..Recovery::default() });
            stored.state.last_failure = Some(failure);
        };
        fail(&mut stored, 1, 100);
        // the same failure, with more details
        fail(&mut stored, 1, 90);
        assert!(stored.earlier.is_empty());
        stored.recovery.as_mut().unwrap().note_started(UnixMillis(150));
        fail(&mut stored, 2, 200);
        let earlier = &stored.earlier[0];
        assert_eq!((earlier.failure.failed_at, earlier.recovery.started_at), (UnixMillis(90), Some(UnixMillis(150))));
        (3..100).for_each(|attempt| fail(&mut stored, attempt, 200 + attempt));
        assert_eq!((stored.earlier.len(), stored.earlier[MAX_EARLIER - 1].failure.attempt), (MAX_EARLIER, 98));
        let mut late = Recovery { loaded_at: Some(UnixMillis(5)), ..Recovery::default() };
        late.note_started(UnixMillis(6));
        assert_eq!(late.started_at, None, "a spare's successor");
    }

    #[test]
    fn attempts_are_numbered_on_and_a_finished_job_gets_a_new_budget() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(workspace.path(), None).unwrap();
        let mut stored = LauncherState::load(&folder).unwrap();
        assert_ne!(LauncherState::load(&folder).unwrap().job_uid, stored.job_uid, "it is not stored yet");
        stored.state.attempt =
            Attempt { number: 4, mesh: Mesh::pipeline(3), revision: 0, admission: 0, admitted_replicas: None };
        stored.state.budget.counted_since_checkpoint = 2;
        stored.state.attempt_phase = AttemptPhase::Running { not_before: UnixMillis(9), all_created: true };
        stored.save(&folder).unwrap();
        let loaded = LauncherState::load(&folder).unwrap();
        assert_eq!((&loaded.job_uid, loaded.state.attempt.number), (&stored.job_uid, 4));
        assert_eq!((loaded.state.attempt_phase, loaded.state.budget.counted_since_checkpoint), (AttemptPhase::Idle, 2));

        stored.state.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted));
        stored.save(&folder).unwrap();
        let loaded = LauncherState::load(&folder).unwrap();
        assert_eq!(
            (loaded.state.attempt_phase, loaded.state.budget.counted_since_checkpoint, loaded.state.attempt.number),
            (AttemptPhase::Idle, 0, 4)
        );

        fs::write(folder.launcher_state(), "{").unwrap();
        assert!(LauncherState::load(&folder).unwrap_err().to_string().contains("--fresh"));
    }
}
