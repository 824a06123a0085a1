//! The recoveries that the process of a stage has observed. The live page, which the leader of a group serves in its
//! pod, shows them.

use stagecoach_api::contract::{GroupStatus, StageEnv, StagePhase, StageStatus};

use super::super::TrainingEvent;

/// The number of recoveries that are kept.
const MAX_RECOVERIES: usize = 20;

/// The loss of a stage, and the group (the processes that train together) that formed afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRecovery {
    /// The time of the loss, in milliseconds since 1970.
    pub lost_at: u64,
    /// A sentence that describes how the loss was observed.
    pub cause: String,
    /// The group that formed after the loss. All fields of the group are zero until its stages are connected.
    pub group: GroupStatus,
}

/// The recoveries that a process has observed, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupRecoveries(Vec<GroupRecovery>);

impl GroupRecoveries {
    /// Returns the recoveries of the stage that `env` describes. If this process replaces a lost process, a recovery is
    /// already under way, and the list contains it.
    pub(crate) fn new(env: &StageEnv, now: u64) -> Self {
        let mut recoveries = Self::default();
        if env.incarnation > 0 {
            recoveries.begin(now, format!("stage {} was lost, and this process was started for it", env.rank));
        }
        recoveries
    }

    /// Records the event if it begins a recovery.
    pub(super) fn note_event(&mut self, event: &TrainingEvent, now: u64) {
        match event {
            // all losses before the next group trains belong to one recovery
            TrainingEvent::StageLost { message, .. } if self.under_way().is_none() => self.begin(now, message.clone()),
            TrainingEvent::Promoted { stage, .. } => {
                self.begin(now, format!("stage {stage} was lost, and this spare took its place"));
            }
            _ => {}
        }
    }

    /// Records the progress of `group`, which may still be the lost group. Returns the recovery if the group's first
    /// step completes it.
    pub(super) fn note_group(&mut self, group: Option<&GroupStatus>) -> Option<GroupRecovery> {
        let (recovery, group) = (self.under_way()?, group?);
        if group.joined_at < recovery.lost_at {
            return None;
        }
        recovery.group = group.clone();
        (group.first_step_at != 0).then(|| recovery.clone())
    }

    pub(super) fn all(&self) -> Vec<GroupRecovery> {
        self.0.clone()
    }

    fn under_way(&mut self) -> Option<&mut GroupRecovery> {
        self.0.last_mut().filter(|recovery| recovery.group.first_step_at == 0)
    }

    fn begin(&mut self, lost_at: u64, cause: String) {
        self.0.push(GroupRecovery { lost_at, cause, group: GroupStatus::default() });
        self.0.drain(..self.0.len().saturating_sub(MAX_RECOVERIES));
    }
}

/// Describes the job's status in a sentence or two, from the status of the leader.
pub(crate) fn status_text(status: &StageStatus) -> String {
    let doing = match status.phase {
        StagePhase::Preparing => "It prepares",
        StagePhase::StandingBy => "A spare waits",
        StagePhase::Forming => "The stages load",
        StagePhase::Training => "It runs",
        StagePhase::Draining => "It saves a checkpoint, then exits",
        StagePhase::Done => "It is finished",
    };
    let progress = &status.progress;
    let mut text = match progress.steps {
        Some(steps) => format!("{doing}: {} of {steps} steps are trained.", progress.step),
        None => format!("{doing}."),
    };
    for message in [Some(&status.message), status.save_failure.as_ref()].into_iter().flatten() {
        if !message.is_empty() {
            text += &format!(" {message}.");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_before_the_next_step_are_one_recovery() {
        let mut recoveries = GroupRecoveries::default();
        let lost = |stage| TrainingEvent::StageLost {
            stage,
            incarnation: 0,
            has_ended: true,
            message: format!("lost stage {stage}"),
        };
        recoveries.note_event(&lost(1), 100);
        recoveries.note_event(&lost(2), 150);
        let group = GroupStatus { fence: 2, joined_at: 200, loaded_at: 300, ..GroupStatus::default() };
        assert_eq!(recoveries.note_group(Some(&group)), None, "it has not trained");
        let trained = GroupStatus { first_step_at: 400, ..group.clone() };
        let complete = recoveries.note_group(Some(&trained));
        assert_eq!(complete.map(|recovery| (recovery.lost_at, recovery.group)), Some((100, trained.clone())));
        assert_eq!(recoveries.note_group(Some(&trained)), None, "it is complete already");
        // the next loss begins a second recovery, and the first recovery keeps the group that trained
        recoveries.note_event(&lost(0), 900);
        recoveries.note_group(Some(&GroupStatus { first_step_at: 400, ..group.clone() }));
        let all = recoveries.all();
        let causes: Vec<&str> = all.iter().map(|recovery| recovery.cause.as_str()).collect();
        assert_eq!(causes, ["lost stage 1", "lost stage 0"]);
        assert_eq!((all[0].lost_at, all[0].group.first_step_at, all[1].group.fence), (100, 400, 0));
        (0..100).for_each(|at| {
            recoveries.note_group(Some(&GroupStatus { joined_at: u64::MAX, first_step_at: 1, ..group.clone() }));
            recoveries.note_event(&lost(1), at);
        });
        assert_eq!(recoveries.all().len(), MAX_RECOVERIES);
    }

    #[test]
    fn a_stage_reports_the_state_of_the_job() {
        let mut status = StageStatus { message: "tokenising, 1 of 2".into(), ..StageStatus::default() };
        assert_eq!(status_text(&status), "It prepares. tokenising, 1 of 2.");
        (status.phase, status.progress.step, status.progress.steps) = (StagePhase::Training, 7, Some(9));
        status.message.clear();
        assert_eq!(status_text(&status), "It runs: 7 of 9 steps are trained.");
    }
}
