//! The stored state of the state machine: `status.record` of the job, or the launcher's `state.json`. The JSON form
//! never changes: fields that were renamed keep their keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{FailureKind, Mesh};

use crate::{AttemptFailure, InstanceId, RestartBudget, UnixMillis};

/// The stored state of a job. The default is the state of a new job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobState {
    /// The phase of the current attempt.
    #[serde(rename = "doing")]
    pub attempt_phase: AttemptPhase,
    /// The current attempt, or the last one.
    pub attempt: Attempt,
    /// The incarnations of the current attempt's stages, by rank. Stages at their first incarnation, 0, are left out.
    /// An incarnation only grows, by one or more, so it does not count the replacements of a stage.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub incarnations: BTreeMap<u32, u32>,
    /// The ranks of the stages whose newest incarnation must still be created. Empty unless a replacement is under way,
    /// or the queue has admitted more replicas to a running attempt.
    #[serde(default, rename = "starting", skip_serializing_if = "BTreeSet::is_empty")]
    pub ranks_to_create: BTreeSet<u32>,
    /// The ranks of the stages that were replaced since training last finished a step beyond all earlier steps. If one
    /// of these stages fails again, all stages restart.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaced_without_progress: BTreeSet<u32>,
    /// The numbers of restarts so far.
    #[serde(default)]
    pub budget: RestartBudget,
    /// The number of failures since training last finished a step beyond all earlier steps. This number determines the
    /// back-off.
    #[serde(default, rename = "failures")]
    pub failures_without_progress: u32,
    /// The highest number of finished steps of any attempt.
    #[serde(default, rename = "bestStep")]
    pub max_finished_steps: Option<u64>,
    /// The step of the newest committed checkpoint.
    #[serde(default, rename = "checkpoint")]
    pub checkpoint_step: Option<u64>,
    /// The last failure's root cause.
    #[serde(default)]
    pub last_failure: Option<AttemptFailure>,
    /// The kind and the step of the last deterministic failure. A second failure with the same kind and step ends the
    /// job.
    #[serde(default, rename = "deterministic")]
    pub last_deterministic_failure: Option<(FailureKind, Option<u64>)>,
    /// The nodes on which no further instance may run, because an instance on them computed wrong results. The caller
    /// adds the nodes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded_nodes: BTreeSet<String>,
    /// The start time of the first attempt, or of the first attempt since the job was last suspended or waited in its
    /// queue.
    #[serde(default, rename = "started")]
    pub started_at: Option<UnixMillis>,
}

/// The phase of the current attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttemptPhase {
    /// No attempt runs: before the first attempt, or while the job is suspended or not admitted.
    #[default]
    Idle,
    /// The attempt runs, or its instances must still be created.
    Running {
        /// The earliest time at which the attempt's instances may be created.
        not_before: UnixMillis,
        /// Whether all instances were created. An instance that is missing later was deleted.
        #[serde(rename = "created")]
        all_created: bool,
    },
    /// The instances received SIGTERM and save before they exit.
    Draining,
    /// The job has ended and does not run again.
    Finished(JobOutcome),
}

/// One start of all stages from scratch. Within an attempt, a new group forms whenever single stages are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The number of the attempt, from 1. 0 before the first attempt. A number is never reused.
    pub number: u64,
    /// The stages and replicas of the attempt.
    #[serde(flatten)]
    pub mesh: Mesh,
    /// The revision of the spec that the attempt runs.
    pub revision: u64,
    /// The number of the admission under which the attempt runs. 0 without a queue.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub admission: u64,
    /// The number of replicas that the queue admits, which may grow during the attempt. `None` if the queue admits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_replicas: Option<u32>,
}

impl Attempt {
    /// Returns the number of replicas that the attempt has.
    pub fn replicas(&self) -> u32 {
        let all = self.mesh.data_parallel;
        self.admitted_replicas.unwrap_or(all).min(all)
    }

    /// Returns the number of instances that the attempt has: the stages of its replicas.
    pub fn instances(&self) -> u32 {
        self.mesh.stages.saturating_mul(self.replicas())
    }
}

// serde passes the number by reference
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobOutcome {
    /// Training is complete.
    Complete,
    /// The job failed. `JobState::last_failure` has the cause.
    Failed(JobFailureReason),
}

/// The reason of a job's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobFailureReason {
    /// A stage found the job or its plan invalid.
    InvalidConfig,
    /// A rule of `restart.podFailurePolicy` has the action FailJob.
    #[serde(rename = "ExitCodeRule")]
    PodFailurePolicy,
    /// A deterministic failure occurred twice at the same step, so a restart would not help.
    Deterministic,
    /// The restart budget is exhausted.
    BudgetExhausted,
    /// `activeDeadlineSeconds` have passed.
    DeadlineExceeded,
}

impl JobFailureReason {
    /// Returns the reason in words, for the user.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::InvalidConfig => "a stage found the job invalid",
            Self::PodFailurePolicy => "a rule of restart.podFailurePolicy with the action FailJob matched",
            Self::Deterministic => "the same failure came again at the same step",
            Self::BudgetExhausted => "restart.maxRestarts is used up",
            Self::DeadlineExceeded => "activeDeadlineSeconds have passed",
        }
    }
}

impl JobState {
    /// Returns the incarnation of `rank` in the current attempt. 0 unless the stage was replaced.
    pub fn incarnation(&self, rank: u32) -> u32 {
        self.incarnations.get(&rank).copied().unwrap_or(0)
    }

    /// Whether `instance` is the newest instance of its stage in the current attempt.
    pub fn is_newest(&self, instance: InstanceId) -> bool {
        instance.incarnation == self.incarnation(instance.rank)
    }

    /// Corrects the times that decisions depend on, if a clock that was ahead of the current clock recorded them.
    /// Afterwards, a back-off ends at the time `latest_not_before` at the latest, and no other of these times is later
    /// than `now`. No wait then exceeds its bound, whatever the earlier clock showed.
    pub(crate) fn clamp_times(&mut self, now: UnixMillis, latest_not_before: UnixMillis) {
        if let AttemptPhase::Running { not_before, .. } = &mut self.attempt_phase {
            *not_before = latest_not_before.min(*not_before);
        }
        self.started_at = self.started_at.map(|started| now.min(started));
        // the time of any other failure is only displayed, and compared to identify the failure
        if let Some(failure) = self.last_failure.as_mut().filter(|failure| failure.awaits_exit()) {
            failure.failed_at = now.min(failure.failed_at);
        }
    }

    /// Returns the outcome of the job, if it has ended.
    pub const fn outcome(&self) -> Option<&JobOutcome> {
        match &self.attempt_phase {
            AttemptPhase::Finished(outcome) => Some(outcome),
            _ => None,
        }
    }
}
