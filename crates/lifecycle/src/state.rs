//! The stored state of the state machine: `status.record` of the job, or the launcher's `state.json`. Its JSON never
//! changes: fields that were renamed keep their keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{FailureKind, Mesh};

use crate::{AttemptFailure, InstanceId, RestartBudget, UnixMillis};

/// The stored state of a job. A new job has the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobState {
    /// Phase of the current attempt.
    #[serde(rename = "doing")]
    pub attempt_phase: AttemptPhase,
    /// The current attempt, or the last one.
    pub attempt: Attempt,
    /// The incarnations of the current attempt's stages, by rank; those that are still their first, 0, are left out.
    /// They only grow, by one or more: they do not say how often a stage was replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub incarnations: BTreeMap<u32, u32>,
    /// The ranks of the stages whose last incarnation is to be created. Only while a replacement is under way.
    #[serde(default, rename = "starting", skip_serializing_if = "BTreeSet::is_empty")]
    pub ranks_to_create: BTreeSet<u32>,
    /// The ranks of the stages that were replaced since a step beyond all earlier ones was finished: one that fails
    /// again makes the whole group again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaced_without_progress: BTreeSet<u32>,
    /// Restarts so far.
    #[serde(default)]
    pub budget: RestartBudget,
    /// Failures since a step beyond all earlier ones was finished; they determine the back-off.
    #[serde(default, rename = "failures")]
    pub failures_without_progress: u32,
    /// The highest number of finished steps of any attempt.
    #[serde(default, rename = "bestStep")]
    pub max_finished_steps: Option<u64>,
    /// Step of the newest committed checkpoint.
    #[serde(default, rename = "checkpoint")]
    pub checkpoint_step: Option<u64>,
    /// The last failure's root cause.
    #[serde(default)]
    pub last_failure: Option<AttemptFailure>,
    /// Kind and step of the last deterministic failure; the same pair again is final.
    #[serde(default, rename = "deterministic")]
    pub last_deterministic_failure: Option<(FailureKind, Option<u64>)>,
    /// The nodes that no instance is to run on any more, since one on them has computed wrong. The caller adds them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded_nodes: BTreeSet<String>,
    /// When the first attempt started, or the first since the job was suspended.
    #[serde(default, rename = "started")]
    pub started_at: Option<UnixMillis>,
}

/// Phase of the current attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttemptPhase {
    /// No attempt: before the first one, or while suspended.
    #[default]
    Idle,
    /// The attempt is to be created, or runs.
    Running {
        /// Its instances may be created from this time on.
        not_before: UnixMillis,
        /// Whether all instances were created; one missing afterwards was deleted.
        #[serde(rename = "created")]
        all_created: bool,
    },
    /// The instances received SIGTERM and save before they exit.
    Draining,
    /// The job has ended, for good.
    Finished(JobOutcome),
}

/// One start of all stages from scratch. Within it groups form and break, as single stages are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counts from 1 and is never used twice; 0 before the first.
    pub number: u64,
    /// Its stages and replicas.
    #[serde(flatten)]
    pub mesh: Mesh,
    /// The revision of the spec that it runs.
    pub revision: u64,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobOutcome {
    /// Trained to the end.
    Complete,
    /// Failed; `JobState::last_failure` has the cause.
    Failed(JobFailureReason),
}

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobFailureReason {
    /// A stage found the job or its plan invalid.
    InvalidConfig,
    /// A rule of `restart.podFailurePolicy` has the action FailJob.
    #[serde(rename = "ExitCodeRule")]
    PodFailurePolicy,
    /// A deterministic failure occurred twice at the same step; restarting would not help.
    Deterministic,
    /// No restart is left.
    BudgetExhausted,
    /// `activeDeadlineSeconds` have passed.
    DeadlineExceeded,
}

impl JobFailureReason {
    /// The reason in words, for the user.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::InvalidConfig => "a stage found the job invalid",
            Self::PodFailurePolicy => "a rule of restart.podFailurePolicy says so",
            Self::Deterministic => "the same failure came again at the same step",
            Self::BudgetExhausted => "restart.maxRestarts is used up",
            Self::DeadlineExceeded => "activeDeadlineSeconds have passed",
        }
    }
}

impl JobState {
    /// The incarnation of `rank` in the current attempt: 0 unless it was replaced.
    pub fn incarnation(&self, rank: u32) -> u32 {
        self.incarnations.get(&rank).copied().unwrap_or(0)
    }

    /// Whether it is the newest instance of its stage in the current attempt.
    pub fn is_newest(&self, instance: InstanceId) -> bool {
        instance.incarnation == self.incarnation(instance.rank)
    }

    /// Corrects what a clock ahead of this one has recorded: nothing was recorded later than `now`, and no back-off
    /// lasts longer than to `longest_backoff`. So no wait is longer than its bound from now, whatever the clock before
    /// showed.
    pub(crate) fn clamp_times(&mut self, now: UnixMillis, longest_backoff: UnixMillis) {
        if let AttemptPhase::Running { not_before, .. } = &mut self.attempt_phase {
            *not_before = longest_backoff.min(*not_before);
        }
        self.started_at = self.started_at.map(|started| now.min(started));
        // of other failures the time is only shown, and tells them apart
        if let Some(failure) = self.last_failure.as_mut().filter(|failure| failure.awaits_exit()) {
            failure.failed_at = now.min(failure.failed_at);
        }
    }

    /// The outcome of the job, if it has ended.
    pub const fn outcome(&self) -> Option<&JobOutcome> {
        match &self.attempt_phase {
            AttemptPhase::Finished(outcome) => Some(outcome),
            _ => None,
        }
    }
}
