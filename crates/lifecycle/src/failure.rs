//! The cause of an attempt's failure, in its stored and displayed form.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{ExitCode, FailureKind, Mesh};

use crate::instance::{Exit, ExternalCause, InstanceId, StageInstance};
use crate::{JobState, UnixMillis};

/// The root cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptFailure {
    /// The number of the attempt that failed.
    pub attempt: u64,
    /// The rank of the stage that failed first. `None` if no single stage failed first.
    #[serde(rename = "stage")]
    pub rank: Option<u32>,
    /// The stages and replicas of the failed attempt. `None` if the attempt had a single replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// The incarnation of the instance that failed first. 0 if no single stage failed first.
    #[serde(default)]
    pub incarnation: u32,
    /// The reason of the failure.
    pub reason: FailureReason,
    /// The exit code, or 128 plus the number of the signal that killed the process. `None` if no exit was observed.
    #[serde(rename = "code")]
    pub exit_code: Option<i32>,
    /// The kind of failure in the stage's termination message. `None` without a message.
    pub kind: Option<FailureKind>,
    /// The step in progress at the failure.
    pub step: Option<u64>,
    /// The action of the pipeline schedule in progress at the failure.
    pub action: Option<String>,
    /// A sentence about the failure for the user.
    pub message: String,
    /// The time of the stage's exit, or of the failure's detection.
    #[serde(rename = "at")]
    pub failed_at: UnixMillis,
    /// Whether the restart after this failure did not count against the budget, although the exit was not observed yet.
    /// The observed exit may change the decision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
}

/// The reason of an attempt's failure. The stored and displayed form is the variant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureReason {
    /// The stage reported the kind of its failure (`AttemptFailure::kind`), or exited with a code for which there is no
    /// other reason.
    Error,
    /// The job or its plan is invalid.
    InvalidConfig,
    /// A file operation on the volume failed.
    Storage,
    /// A signal killed the process; SIGKILL may come from the kernel's out-of-memory killer. The reason also applies
    /// when the peers report the end of the process before its exit is observed.
    Killed,
    /// The stages lost their connections to each other, and none of them failed by itself.
    PeerLost,
    /// The stage was deleted and its exit was not observed, or the stage exited without a code.
    Unknown,
    /// No step finished within the stall timeout. The reason also applies when the peers have lost a process that still
    /// runs, or when a process does not terminate.
    Stalled,
    /// Rendezvous was not complete within the start-up timeout.
    StartupTimeout,
    /// Another client terminated the stage, and the stage saved a checkpoint. The reason also applies when all stages
    /// were deleted before their exits were observed, for example because a cluster was drained.
    Drained,
    /// A pod of higher priority preempted the stage.
    Preempted,
    /// The pod was evicted.
    Evicted,
    /// The node was lost.
    NodeLost,
    /// The stage was not scheduled within the scheduling timeout, was not created, or did not start before the other
    /// stages stopped waiting for it.
    Unschedulable,
}

impl AttemptFailure {
    /// Returns the instance that failed first. `None` if no single stage failed first.
    pub fn instance_id(&self) -> Option<InstanceId> {
        self.rank.map(|rank| InstanceId { rank, incarnation: self.incarnation })
    }

    /// Returns the name of the stage that failed first. `None` if no single stage failed first.
    pub fn stage(&self) -> Option<String> {
        self.rank.map(|rank| self.mesh().name(rank))
    }

    /// Returns the stages and replicas of the failed attempt. If the attempt had a single replica, the number of stages
    /// was not recorded and is returned as 0.
    pub fn mesh(&self) -> Mesh {
        self.mesh.unwrap_or_default()
    }

    /// Returns the kind and the step of a deterministic failure, or `None` for any other failure.
    pub(crate) fn deterministic_signature(&self) -> Option<(FailureKind, Option<u64>)> {
        self.kind.filter(|kind| kind.is_deterministic()).map(|kind| (kind, self.step))
    }

    /// Whether the failure needs a new attempt and not only a replacement of the stage. Such a failure would recur, or
    /// the state in the memory of the other stages may be wrong too.
    pub(crate) fn needs_new_attempt(&self) -> bool {
        self.deterministic_signature().is_some() || self.kind == Some(FailureKind::WrongResult)
    }

    /// Whether only the other stages have reported the failure, and the exit of the process is not observed yet.
    pub(crate) fn awaits_exit(&self) -> bool {
        self.reason == FailureReason::Killed && self.exit_code.is_none()
    }

    /// Whether `other` is the same failure, possibly with more details.
    pub fn is_same(&self, other: &AttemptFailure) -> bool {
        let identity =
            |failure: &AttemptFailure| (failure.attempt, failure.rank, failure.incarnation, failure.failed_at);
        identity(self) == identity(other)
    }

    /// Returns the kind from the termination message where it is more specific than the reason, and `None` elsewhere.
    pub(crate) fn specific_kind(&self) -> Option<FailureKind> {
        self.kind.filter(|kind| match self.reason {
            FailureReason::Error => true,
            FailureReason::Killed => *kind == FailureKind::OutOfMemory,
            _ => false,
        })
    }

    /// Returns the reason shown to the user. The kind from the termination message replaces the reason where the kind
    /// is more specific.
    pub fn label(&self) -> String {
        self.specific_kind().map_or_else(|| format!("{:?}", self.reason), |kind| kind.to_string())
    }

    pub(crate) fn without_exit(
        state: &JobState,
        reason: FailureReason,
        rank: Option<u32>,
        message: impl Into<String>,
        failed_at: UnixMillis,
    ) -> Self {
        Self {
            attempt: state.attempt.number,
            rank,
            mesh: state.attempt.mesh.if_replicated(),
            incarnation: rank.map_or(0, |rank| state.incarnation(rank)),
            reason,
            exit_code: None,
            kind: None,
            step: None,
            action: None,
            message: message.into(),
            failed_at,
            uncounted: false,
        }
    }

    pub(crate) fn from_exit(state: &JobState, instance: &StageInstance, exit: &Exit) -> Self {
        let report = exit.termination.as_ref();
        let exit_code = exit.shell_code();
        let default_message =
            exit_code.map_or_else(|| "exited without a code".into(), |code| format!("exited with code {code}"));
        Self {
            attempt: instance.attempt,
            rank: Some(instance.rank),
            mesh: state.attempt.mesh.if_replicated(),
            incarnation: instance.incarnation,
            reason: reason(exit),
            exit_code,
            kind: report.map(|report| report.kind),
            step: report.and_then(|report| report.step),
            action: report.and_then(|report| report.action.clone()),
            message: report
                .map(|report| report.message.clone())
                .filter(|text| !text.is_empty())
                .or_else(|| exit.message.clone())
                .unwrap_or(default_message),
            failed_at: instance.since,
            uncounted: false,
        }
    }
}

fn reason(exit: &Exit) -> FailureReason {
    match (exit.external_cause, exit.contract_code(), exit.signal) {
        (Some(ExternalCause::Preempted), ..) => FailureReason::Preempted,
        (Some(ExternalCause::Evicted), ..) => FailureReason::Evicted,
        (Some(ExternalCause::NodeLost), ..) => FailureReason::NodeLost,
        (Some(ExternalCause::NotAdmitted), ..) => FailureReason::Unschedulable,
        (None, Some(ExitCode::InvalidConfig), _) => FailureReason::InvalidConfig,
        (None, Some(ExitCode::Storage), _) => FailureReason::Storage,
        (None, Some(ExitCode::PeerLost), _) => FailureReason::PeerLost,
        (None, Some(ExitCode::Drained), _) => FailureReason::Drained,
        (None, Some(ExitCode::Killed), _) | (None, _, Some(_)) => FailureReason::Killed,
        (None, None, None) if exit.code.is_none() => FailureReason::Unknown,
        (None, ..) => FailureReason::Error,
    }
}
