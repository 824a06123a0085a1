//! Records the recovery from a failure: the state of training at the failure, and the time and step at which training
//! resumed.

use stagecoach_lifecycle::{AttemptFailure, UnixMillis};

use super::super::launcher_state::{Recovery, is_same_failure};
use super::Supervisor;

/// A start of training.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastStart {
    pub(super) at: UnixMillis,
    /// The last step that was finished before this start.
    pub(super) finished_step: Option<u64>,
    pub(super) first_step: u64,
}

impl Supervisor<'_> {
    /// Returns the recovery from a new failure, or from a known failure that is reported again with more details. If
    /// training has already resumed, the recovery includes the step and time at which training resumed.
    pub(super) fn recovery(&self, failure: &AttemptFailure) -> Recovery {
        let known = self.stored.state.last_failure.as_ref().is_some_and(|known| is_same_failure(known, failure));
        if let Some(recovery) = self.stored.recovery.filter(|_| known) {
            return Recovery { failed_at: failure.failed_at, ..recovery };
        }
        // the launcher may learn the cause of a stage's end only after a spare has replaced the stage and training has
        // resumed
        let has_resumed = |start: &LastStart| {
            start.at >= failure.failed_at
                || failure.instance_id().is_some_and(|instance| self.processes.is_replaced(failure.attempt, instance))
        };
        let finished = self.observed_progress.finished_steps.or(self.stored.state.max_finished_steps);
        let begun = Recovery { failed_at: failure.failed_at, finished_step: finished, ..Recovery::default() };
        match self.last_start.filter(has_resumed) {
            Some(LastStart { at, finished_step, first_step }) => {
                Recovery { finished_step, first_step: Some(first_step), loaded_at: Some(at), ..begun }
            }
            None => begun,
        }
    }

    /// Applies `note` to the current recovery, unless there is none or training has finished a step since the failure.
    pub(super) fn note_recovery(&mut self, note: impl FnOnce(&mut Recovery)) {
        let Some(recovery) = self.stored.recovery.as_mut().filter(|recovery| recovery.first_step_at.is_none()) else {
            return;
        };
        let before = *recovery;
        note(recovery);
        self.recovery_unsaved |= *recovery != before;
    }
}
