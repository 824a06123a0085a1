//! One failure takes the whole group down: the root cause is picked out of N ends.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{ExitCode, FailureKind};

use crate::observed::{Exit, External, Member, MemberState, Observed};
use crate::time::Clock;
use crate::{State, Time};

/// Seconds in which the group goes once a stage is dead; until then the true culprit's end may not have been seen.
const SETTLE: u64 = 10;

/// The root cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The attempt that failed.
    pub attempt: u64,
    /// The stage that failed first, if it was one.
    pub stage: Option<u32>,
    /// Why, in one word.
    pub reason: Reason,
    /// The exit code, 128 + signal for a signal.
    pub code: Option<i32>,
    /// The kind that the stage itself gave.
    pub kind: Option<FailureKind>,
    /// The step in progress.
    pub step: Option<u64>,
    /// The action in progress.
    pub action: Option<String>,
    /// A sentence.
    pub message: String,
    /// When it ended, or when that was noticed.
    pub at: Time,
}

/// Why an attempt failed, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The stage gave the reason itself, as `Failure::kind`, or an exit code of its own.
    Error,
    /// The job or its plan is invalid.
    InvalidConfig,
    /// The volume failed.
    Storage,
    /// Ended by a signal; SIGKILL is what a lack of memory looks like.
    Killed,
    /// All stages lost each other and none is the culprit.
    PeerLost,
    /// The stage is gone and its end was missed.
    Unknown,
    /// Nothing was done for too long.
    Stalled,
    /// The group did not form in time.
    StartupTimeout,
    /// Asked to leave by someone else, after saving.
    Drained,
    /// A pod of higher priority took the place.
    Preempted,
    /// Evicted.
    Evicted,
    /// The node is gone.
    NodeLost,
    /// No place was found in time.
    Unschedulable,
}

impl Failure {
    /// What makes a failure come again: none if it need not.
    pub(crate) fn deterministic(&self) -> Option<(FailureKind, Option<u64>)> {
        self.kind.filter(|kind| kind.is_deterministic()).map(|kind| (kind, self.step))
    }

    /// The reason, by the stage's own word where it gave one, or the kernel's.
    pub fn label(&self) -> String {
        match (self.reason, self.kind) {
            (Reason::Error, Some(kind)) | (Reason::Killed, Some(kind @ FailureKind::OutOfMemory)) => kind.to_string(),
            (reason, _) => format!("{reason:?}"),
        }
    }

    fn of_group(state: &State, reason: Reason, stage: Option<u32>, message: impl Into<String>, at: Time) -> Self {
        Self {
            attempt: state.attempt.number,
            stage,
            reason,
            code: None,
            kind: None,
            step: None,
            action: None,
            message: message.into(),
            at,
        }
    }

    fn of_exit(member: &Member, exit: &Exit) -> Self {
        let report = exit.report.as_ref();
        let code = exit.shell_code();
        let told = code.map_or_else(|| "ended without a code".into(), |code| format!("ended with exit code {code}"));
        Self {
            attempt: member.attempt,
            stage: Some(member.stage),
            reason: reason(exit),
            code,
            kind: report.map(|report| report.kind),
            step: report.and_then(|report| report.step),
            action: report.and_then(|report| report.action.clone()),
            message: report.map(|report| report.message.clone()).filter(|text| !text.is_empty()).unwrap_or(told),
            at: member.at,
        }
    }
}

fn reason(exit: &Exit) -> Reason {
    match (exit.external, exit.meaning(), exit.signal) {
        (Some(External::Preempted), ..) => Reason::Preempted,
        (Some(External::Evicted), ..) => Reason::Evicted,
        (Some(External::NodeLost), ..) => Reason::NodeLost,
        (None, Some(ExitCode::InvalidConfig), _) => Reason::InvalidConfig,
        (None, Some(ExitCode::Storage), _) => Reason::Storage,
        (None, Some(ExitCode::PeerLost), _) => Reason::PeerLost,
        (None, Some(ExitCode::Drained), _) => Reason::Drained,
        (None, Some(ExitCode::Killed), _) | (None, _, Some(_)) => Reason::Killed,
        (None, None, None) if exit.code.is_none() => Reason::Unknown,
        (None, ..) => Reason::Error,
    }
}

/// How much an end tells of the cause: the lowest comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guilt {
    /// It failed by itself.
    Culprit,
    /// It left because it was asked to.
    Drained,
    /// It left because another did.
    Collateral,
}

fn guilt(exit: &Exit) -> Guilt {
    let told = exit.report.as_ref().map(|report| report.kind);
    match exit.meaning() {
        _ if exit.external.is_some() => Guilt::Culprit,
        Some(ExitCode::PeerLost) => Guilt::Collateral,
        Some(ExitCode::Drained) => Guilt::Drained,
        _ if told == Some(FailureKind::PeerLost) => Guilt::Collateral,
        _ => Guilt::Culprit,
    }
}

/// The root cause, if the attempt has failed and enough has been seen to tell why.
pub(crate) fn of_failure(observed: &Observed, created: bool, clock: &mut Clock) -> Option<Failure> {
    of_ends(observed, created, clock).or_else(|| of_silence(observed, created, clock))
}

/// The cause read off the members that ended or are about to.
fn of_ends(observed: &Observed, created: bool, clock: &mut Clock) -> Option<Failure> {
    let (state, policy) = (&observed.state, &observed.policy);
    let failed = || {
        let ended = observed.current().filter_map(|member| Some((member, member.exit()?)));
        ended.filter(|(_, exit)| exit.meaning() != Some(ExitCode::Done))
    };
    let first = failed().min_by_key(|(member, exit)| (guilt(exit), member.at, member.stage));
    if let Some((member, exit)) = first
        && guilt(exit) == Guilt::Culprit
    {
        return Some(Failure::of_exit(member, exit));
    }

    // A stage that was asked to leave makes all save: they get the time for it. Otherwise those who lost a peer have
    // ended before the peer's own end was seen: that gets a moment.
    let asked = observed.current().filter(|member| member.is_leaving());
    let drained = failed().filter(|(_, exit)| guilt(exit) == Guilt::Drained).map(|(member, _)| member);
    let saving = asked.chain(drained).map(|member| member.at).min();
    let vanished = observed.missing().next().filter(|_| created);
    let alive = observed.current().find(|member| member.is_alive());
    let patience = policy.grace.saturating_add(SETTLE).min(policy.restart.termination_timeout_seconds.into());
    let deadline = match (saving, first) {
        _ if alive.is_none() => None,
        (Some(since), _) => Some(since.plus_seconds(patience)),
        (None, Some((member, _))) if vanished.is_none() => Some(member.at.plus_seconds(SETTLE)),
        (None, _) => None,
    };
    if deadline.is_some_and(|deadline| !clock.due(deadline)) {
        return None;
    }

    if vanished.is_some() {
        return Some(Failure::of_group(
            state,
            Reason::Unknown,
            vanished,
            "is gone, and its end was not seen",
            clock.now,
        ));
    }
    let Some(alive) = alive else { return first.map(|(member, exit)| Failure::of_exit(member, exit)) };
    if first.is_none() && saving.is_none() {
        return None;
    }
    let (reason, message) = if policy.nodes_may_vanish {
        (
            Reason::NodeLost,
            "is still there, but the others lost it or it can't be made to leave: its node is probably gone",
        )
    } else {
        (Reason::Stalled, "is still there, but the others lost it or it can't be made to leave")
    };
    Some(Failure::of_group(state, reason, Some(alive.stage), message, clock.now))
}

/// The cause when nobody failed, but too much time went by.
fn of_silence(observed: &Observed, created: bool, clock: &mut Clock) -> Option<Failure> {
    let (state, restart) = (&observed.state, &observed.policy.restart);
    let latest = |wanted: fn(&Member) -> bool| {
        observed.current().filter(move |member| wanted(member)).max_by_key(|member| member.at)
    };
    // A member that could not even be created, for a quota's sake, waits for its place like one that is pending.
    let placeless = latest(|member| member.state == MemberState::Pending);
    if let Some(member) = placeless.or_else(|| latest(Member::is_alive).filter(|_| !created)) {
        let timeout = observed.policy.scheduling_timeout;
        return clock.due(member.at.plus_seconds(timeout)).then(|| {
            let message = format!("found no place within {timeout} s");
            Failure::of_group(state, Reason::Unschedulable, Some(member.stage), message, clock.now)
        });
    }
    if let Some(member) = latest(|member| member.state == MemberState::Starting) {
        let timeout = restart.startup_timeout_seconds;
        let since = observed.seen.prepared.map_or(member.at, |prepared| prepared.max(member.at));
        return clock.due(since.plus_seconds(timeout.into())).then(|| {
            let message = format!("the group did not form within {timeout} s of the last progress");
            Failure::of_group(state, Reason::StartupTimeout, Some(member.stage), message, clock.now)
        });
    }
    let ready = latest(|member| member.state == MemberState::Ready)?;
    // Once a stage is done, the others are about to be; until then only a known progress can be missed.
    let done = latest(|member| !member.is_alive());
    let since = done.map(|member| member.at).or(observed.seen.progressed)?.max(ready.at);
    let timeout = restart.stall_timeout_seconds;
    clock.due(since.plus_seconds(timeout.into())).then(|| {
        let message = format!("did not finish a step within {timeout} s");
        Failure::of_group(state, Reason::Stalled, done.map(|_| ready.stage), message, clock.now)
    })
}
