//! Root-cause analysis: one failing stage ends all others; this picks the first failure out of N exits.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{ExitCode, FailureKind, Mesh};

use crate::observed::{Exit, ExternalCause, InstanceId, InstanceState, Observed, StageInstance};
use crate::time::DeadlineClock;
use crate::{JobState, UnixMillis, report};

/// How long, in seconds, to wait after the first secondary exit for the root cause's own exit to be observed.
const ROOT_CAUSE_SETTLE_SECONDS: u64 = 10;

/// How long, in seconds, the instances of an attempt are held while the creation of another is refused. A quota that is full
/// of what is just being deleted has room again sooner.
const CREATION_REJECTED_GRACE_SECONDS: u64 = 10;

/// The message of a failure whose pod or process was deleted.
pub(crate) const GONE: &str = "the pod or process is gone and its exit was not observed";

/// The root cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptFailure {
    /// The attempt that failed.
    pub attempt: u64,
    /// The rank of the stage that failed first, if one did.
    #[serde(rename = "stage")]
    pub rank: Option<u32>,
    /// The stages and replicas of that attempt; none if it had but one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// Which of the stage's instances in this attempt: its incarnation.
    #[serde(default)]
    pub incarnation: u32,
    /// The reason.
    pub reason: FailureReason,
    /// The exit code, 128 + signal for a signal.
    #[serde(rename = "code")]
    pub exit_code: Option<i32>,
    /// The kind in the stage's termination message.
    pub kind: Option<FailureKind>,
    /// The step in progress.
    pub step: Option<u64>,
    /// The action in progress.
    pub action: Option<String>,
    /// A sentence for the user.
    pub message: String,
    /// When the stage exited, or when the failure was detected.
    #[serde(rename = "at")]
    pub failed_at: UnixMillis,
}

/// Why an attempt failed. Stored and shown to the user by the variant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureReason {
    /// The stage reported the kind itself (`AttemptFailure::kind`), or exited with another code.
    Error,
    /// The job or its plan is invalid.
    InvalidConfig,
    /// The volume failed.
    Storage,
    /// Killed by a signal; SIGKILL may be the kernel's out-of-memory killer.
    Killed,
    /// All stages lost a peer and none failed by itself.
    PeerLost,
    /// The stage was deleted and its exit was not observed: somebody deleted it.
    Unknown,
    /// No step was finished within the stall timeout.
    Stalled,
    /// Rendezvous was not complete within the start-up timeout.
    StartupTimeout,
    /// Terminated by another client, after saving; or all stages were deleted unobserved, as by the drain of a cluster.
    Drained,
    /// Preempted by a pod of higher priority.
    Preempted,
    /// Evicted.
    Evicted,
    /// The node was lost.
    NodeLost,
    /// Not scheduled within the scheduling timeout, not created, or not before the other stages gave up waiting.
    Unschedulable,
}

impl AttemptFailure {
    /// The instance that failed first, if one did.
    pub fn instance_id(&self) -> Option<InstanceId> {
        self.rank.map(|rank| InstanceId { rank, incarnation: self.incarnation })
    }

    /// The stage that failed first, in words, if one did.
    pub fn stage(&self) -> Option<String> {
        self.rank.map(|rank| self.mesh().name(rank))
    }

    /// The stages and replicas of that attempt; the stages of one replica are not known.
    pub fn mesh(&self) -> Mesh {
        self.mesh.unwrap_or_default()
    }

    /// Kind and step of a deterministic failure; None of any other.
    pub(crate) fn deterministic_signature(&self) -> Option<(FailureKind, Option<u64>)> {
        self.kind.filter(|kind| kind.is_deterministic()).map(|kind| (kind, self.step))
    }

    /// Whether the whole group has to begin anew: it would come again, or what the others hold in memory may be wrong too.
    pub(crate) fn begins_anew(&self) -> bool {
        self.deterministic_signature().is_some() || self.kind == Some(FailureKind::WrongResult)
    }

    /// Whether it is known from the other stages alone: how the process exited was not observed yet.
    pub(crate) fn awaits_exit(&self) -> bool {
        self.reason == FailureReason::Killed && self.exit_code.is_none()
    }

    /// Whether `other` is the same failure, of which more may be known.
    pub fn is_same(&self, other: &AttemptFailure) -> bool {
        let identity =
            |failure: &AttemptFailure| (failure.attempt, failure.rank, failure.incarnation, failure.failed_at);
        identity(self) == identity(other)
    }

    /// The reason shown to the user: the kind from the termination message where that is more specific.
    pub fn label(&self) -> String {
        match (self.reason, self.kind) {
            (FailureReason::Error, Some(kind)) | (FailureReason::Killed, Some(kind @ FailureKind::OutOfMemory)) => {
                kind.to_string()
            }
            (reason, _) => format!("{reason:?}"),
        }
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
        }
    }
}

fn reason(exit: &Exit) -> FailureReason {
    match (exit.external_cause, exit.exit_code(), exit.signal) {
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

/// Ranks exits by how likely they are the root cause, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CauseRank {
    /// Failed by itself.
    RootCause,
    /// Exited after SIGTERM.
    Drained,
    /// Exited because it lost a peer.
    Secondary,
}

/// `is_waiting`: whether the cluster has not started a stage yet. Then the others can't form a group.
fn cause_rank(exit: &Exit, is_waiting: bool) -> CauseRank {
    let reported_kind = exit.termination.as_ref().map(|report| report.kind);
    match exit.exit_code() {
        _ if exit.external_cause.is_some() => CauseRank::RootCause,
        _ if is_waiting && reported_kind == Some(FailureKind::StartupTimeout) => CauseRank::Secondary,
        Some(ExitCode::PeerLost) => CauseRank::Secondary,
        Some(ExitCode::Drained) => CauseRank::Drained,
        _ if reported_kind == Some(FailureKind::PeerLost) => CauseRank::Secondary,
        _ => CauseRank::RootCause,
    }
}

/// Whether a stage exited for a reason of its own: it did not finish, was not asked to stop, and lost no peer.
pub(crate) fn failed_by_itself(exit: &Exit) -> bool {
    exit.exit_code() != Some(ExitCode::Done) && cause_rank(exit, false) == CauseRank::RootCause
}

/// Whether a stage exited because it had finished or was asked to stop.
pub(crate) fn exited_gracefully(exit: &Exit) -> bool {
    exit.exit_code() == Some(ExitCode::Done) || cause_rank(exit, false) == CauseRank::Drained
}

/// The root cause, if the attempt has failed and enough exits were observed to determine it.
pub(crate) fn root_cause(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    cause_of_exits(observed, all_created, clock)
        .or_else(|| report::cause(observed, all_created, clock))
        .or_else(|| cause_of_refusal(observed, all_created, clock))
        .or_else(|| cause_of_timeout(observed, all_created, clock))
}

/// The cause according to the instances that exited or terminate.
fn cause_of_exits(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    let (state, policy) = (&observed.state, &observed.policy);
    let unstarted = observed.unstarted_stage(all_created);
    let cause_rank = |exit: &Exit| cause_rank(exit, unstarted.is_some());
    let failed = || {
        let ended = observed.current_instances().filter_map(|instance| Some((instance, instance.exit()?)));
        ended.filter(|(_, exit)| exit.exit_code() != Some(ExitCode::Done))
    };
    let first = failed().min_by_key(|(instance, exit)| (cause_rank(exit), instance.since, instance.rank));
    if let Some((instance, exit)) = first
        && cause_rank(exit) == CauseRank::RootCause
    {
        return Some(AttemptFailure::from_exit(state, instance, exit));
    }

    // A terminating stage makes all stages save, so they get the grace period. Without one, peers exit before the failed
    // stage's own exit is observed: wait ROOT_CAUSE_SETTLE_SECONDS for it.
    let terminating = observed.current_instances().filter(|instance| instance.is_terminating());
    let drained = failed().filter(|(_, exit)| cause_rank(exit) == CauseRank::Drained).map(|(instance, _)| instance);
    let saving = terminating.chain(drained).map(|instance| instance.since).min();
    let missing_stage = observed.deleted_stages(all_created).next();
    // when a group has drained, one that was started for another stage of it and is in no group yet has nothing to save
    let has_drained = first.is_some_and(|(_, exit)| cause_rank(exit) == CauseRank::Drained);
    let is_new = |instance: &StageInstance| has_drained && instance.incarnation > 0 && instance.state.is_unready();
    let alive = observed.current_instances().find(|instance| instance.is_alive() && !is_new(instance));
    let save_timeout_seconds = policy.grace_seconds.saturating_add(ROOT_CAUSE_SETTLE_SECONDS);
    let deadline = match (saving, first) {
        _ if alive.is_none() => None,
        (Some(since), _) => Some(since.plus_seconds(save_timeout_seconds)),
        (None, Some((instance, _))) if missing_stage.is_none() => {
            Some(instance.since.plus_seconds(ROOT_CAUSE_SETTLE_SECONDS))
        }
        (None, _) => None,
    };
    if deadline.is_some_and(|deadline| !clock.has_passed(deadline)) {
        return None;
    }

    if let (Some(_), Some(first), None) = (unstarted, first, saving) {
        let (instance, _) = first;
        let message =
            format!("was not started before {} gave up waiting for it", state.attempt.mesh.name(instance.rank));
        return Some(AttemptFailure::without_exit(state, FailureReason::Unschedulable, unstarted, message, clock.now));
    }
    if missing_stage.is_some() && observed.current_instances().next().is_none() {
        let message = "all pods or processes are gone and their exits were not observed: they were deleted";
        return Some(AttemptFailure::without_exit(state, FailureReason::Drained, None, message, clock.now));
    }
    if missing_stage.is_some() {
        return Some(AttemptFailure::without_exit(state, FailureReason::Unknown, missing_stage, GONE, clock.now));
    }
    let Some(mut alive) = alive else {
        return first.map(|(instance, exit)| AttemptFailure::from_exit(state, instance, exit));
    };
    if first.is_none() && saving.is_none() {
        return None;
    }
    if observed.trains_without_others() {
        // the group goes on: what has ended, or does not, was waiting beside it
        match (first, observed.current_instances().find(|instance| instance.is_terminating())) {
            (Some((instance, exit)), _) => return Some(AttemptFailure::from_exit(state, instance, exit)),
            (None, terminating) => alive = terminating.unwrap_or(alive),
        }
    }
    let (reason, message) = if policy.nodes_can_be_lost {
        (
            FailureReason::NodeLost,
            "still exists, but its peers lost it or it does not terminate: its node is probably lost",
        )
    } else {
        (FailureReason::Stalled, "still runs, but its peers lost it or it does not terminate")
    };
    Some(AttemptFailure::without_exit(state, reason, Some(alive.rank), message, clock.now))
}

/// The cause of a refusal while other instances of the attempt exist: they must not hold their resources until it ends.
fn cause_of_refusal(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    // replicas that train without the one that is refused block no resources
    let blocks_resources = !all_created && !observed.trains_without_others();
    let refusal = observed.refusal.as_ref().filter(|_| blocks_resources)?;
    observed.current_instances().find(|instance| instance.is_alive())?;
    let message = format!("was not created: {}", refusal.message);
    clock.has_passed(refusal.since.plus_seconds(CREATION_REJECTED_GRACE_SECONDS)).then(|| {
        let rank = observed.missing_stages().next();
        AttemptFailure::without_exit(&observed.state, FailureReason::Unschedulable, rank, message, clock.now)
    })
}

/// The cause of a timeout: nothing exited, but scheduling, start-up or a step took too long.
fn cause_of_timeout(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    let (state, restart) = (&observed.state, &observed.policy.restart);
    let latest = |wanted: fn(&StageInstance) -> bool| {
        observed.current_instances().filter(move |instance| wanted(instance)).max_by_key(|instance| instance.since)
    };
    // A queue decides how long the group waits, and gives its place to another if it comes anew.
    if !observed.trains_without_others()
        && latest(|instance| instance.state == InstanceState::SchedulingGated).is_some()
    {
        return None;
    }
    // a replica that was lost is not waited for while the others train
    let trained_at = |since: UnixMillis| observed.progress.last_step_at.unwrap_or(since).max(since);
    // An instance that could not be created (quota) counts as pending for the scheduling timeout.
    let pending = latest(|instance| instance.state == InstanceState::Pending);
    if let Some(instance) = pending.or_else(|| latest(StageInstance::is_alive).filter(|_| !all_created)) {
        let timeout = observed.policy.scheduling_timeout_seconds;
        return clock.has_passed(trained_at(instance.since).plus_seconds(timeout)).then(|| {
            let message = format!("was not scheduled within {timeout} s");
            AttemptFailure::without_exit(state, FailureReason::Unschedulable, Some(instance.rank), message, clock.now)
        });
    }
    if let Some(instance) = latest(|instance| instance.state == InstanceState::Starting) {
        if observed.progress.is_unreachable {
            return None;
        }
        let timeout = restart.startup_timeout_seconds;
        let since = observed.progress.last_preparation_at.unwrap_or(instance.since).max(trained_at(instance.since));
        return clock.has_passed(since.plus_seconds(timeout.into())).then(|| {
            let message = format!("rendezvous was not complete within {timeout} s of the last progress");
            AttemptFailure::without_exit(state, FailureReason::StartupTimeout, Some(instance.rank), message, clock.now)
        });
    }
    let ready = latest(|instance| instance.state == InstanceState::Ready)?;
    // Once a stage is done, the others must finish soon; before that, a stall is detected only if progress is known.
    let done = latest(|instance| !instance.is_alive());
    let since = done.map(|instance| instance.since).or(observed.progress.last_step_at)?.max(ready.since);
    let timeout = restart.stall_timeout_seconds;
    clock.has_passed(since.plus_seconds(timeout.into())).then(|| {
        let message = format!("did not finish a step within {timeout} s");
        AttemptFailure::without_exit(state, FailureReason::Stalled, done.map(|_| ready.rank), message, clock.now)
    })
}
