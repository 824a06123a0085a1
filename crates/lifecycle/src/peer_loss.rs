//! Failures that the peers of a lost stage report. The peers detect the end of a process at once. The kubelet reports
//! the exit status of the process up to several seconds later.

use std::collections::BTreeSet;

use crate::instance::StageInstance;
use crate::observed::{LostInstance, Observed};
use crate::policy::RestartDecision;
use crate::state::{AttemptPhase, JobFailureReason, JobOutcome, JobState};
use crate::time::{DeadlineClock, UnixMillis};
use crate::{AttemptFailure, FailureReason, replacement};

/// The time, in seconds, within which a stage that its peers have lost must exit or join the next group.
const LOST_SETTLE_SECONDS: u64 = 2;

/// The time, in seconds, for which a replaced stage whose process has ended is kept, so that its exit can be observed.
const EXIT_TIMEOUT_SECONDS: u64 = 10;

/// The problem of a stage to which the other stages have lost their connection.
const LOST: &str = "its peers lost it";

/// Returns the failure of a stage to which the other stages have lost their connection. That stage has ended, or has
/// neither exited nor joined the next group in time.
pub(crate) fn cause(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    let (instance, lost) = observed.lost_instance()?;
    if lost.has_ended {
        let ended = failure_of_ended(observed, instance.rank, clock.now);
        if may_act_before_exit(observed) && !replacement::replaceable_stages(observed, &ended, all_created).is_empty() {
            return Some(ended);
        }
    }
    let unresponsive = failure_of_unresponsive(observed, instance.rank, LOST, clock.now);
    clock.has_passed_or_wakes_at(lost.since.plus_seconds(LOST_SETTLE_SECONDS)).then_some(unresponsive)
}

/// Returns the failure of a stage that a spare has replaced, before the stage's exit is observed. The spare was
/// promoted at `promoted_at` at the latest. Returns `None` while the exit is awaited, because the exit determines the
/// remedy.
pub(crate) fn failure_before_promotion(
    observed: &Observed,
    instance: &StageInstance,
    promoted_at: UnixMillis,
    clock: &mut DeadlineClock,
) -> Option<AttemptFailure> {
    if !may_act_before_exit(observed) && !clock.has_passed_or_wakes_at(promoted_at.plus_seconds(EXIT_TIMEOUT_SECONDS)) {
        return None;
    }
    let may_run = |(lost, report): (&StageInstance, LostInstance)| lost == instance && !report.has_ended;
    Some(match observed.lost_instance().is_some_and(may_run) {
        true => failure_of_unresponsive(observed, instance.rank, LOST, clock.now),
        false => failure_of_ended(observed, instance.rank, clock.now),
    })
}

/// Returns the failure of a stage that has ended, before its exit is observed.
fn failure_of_ended(observed: &Observed, rank: u32, now: UnixMillis) -> AttemptFailure {
    let message = "its process has ended: its connections were closed";
    AttemptFailure::without_exit(&observed.state, FailureReason::Killed, Some(rank), message, now)
}

/// Returns the failure of a stage that may still run, although it has the `problem`.
pub(crate) fn failure_of_unresponsive(
    observed: &Observed,
    rank: u32,
    problem: &str,
    now: UnixMillis,
) -> AttemptFailure {
    let (reason, message) = match observed.policy.nodes_can_be_lost {
        true => (FailureReason::NodeLost, format!("still exists, but {problem}: its node is probably lost")),
        false => (FailureReason::Stalled, format!("still runs, but {problem}")),
    };
    AttemptFailure::without_exit(&observed.state, reason, Some(rank), message, now)
}

/// Whether `decide` may react to a loss before the exit is observed: no rule of the job depends on the exit, and the
/// budget allows a restart. `with_observed_exit` corrects the decision later.
fn may_act_before_exit(observed: &Observed) -> bool {
    let restart = &observed.policy.restart;
    let has_rules = restart.pod_failure_policy.is_some() || !restart.exit_codes.is_empty();
    !has_rules && observed.state.budget.remaining(restart.max_restarts) > 0
}

/// Adds the exit of the stage that failed last to the state, if the exit was observed after the decision. As a result,
/// the restart may start or cease to count against the budget, or the job may fail.
pub(crate) fn with_observed_exit(observed: &Observed) -> JobState {
    let state = &observed.state;
    let observed_exit = || {
        let known = reported_failure(state)?;
        let instance = observed.instances.iter().find(|instance| is_of(known, instance))?;
        let exited = AttemptFailure::from_exit(state, instance, instance.exit()?);
        let failure = AttemptFailure { failed_at: known.failed_at, ..exited };
        (!failure.awaits_exit()).then_some((instance, !known.uncounted, failure))
    };
    let Some((instance, was_counted, failure)) = observed_exit() else { return state.clone() };
    let mut after = state.clone();
    // the decision must not take the replacement of this stage for an earlier failure, which was counted
    let before_replacement = JobState { replaced_without_progress: BTreeSet::new(), ..state.clone() };
    let decision = observed.policy.restart_decision(&failure, &instance.pod_conditions, &before_replacement, false);
    let fails = match decision {
        RestartDecision::Fail(reason) => Some(reason),
        RestartDecision::Restart { counted: false } if was_counted => {
            after.budget.give_back();
            None
        }
        RestartDecision::Restart { counted: true } if !was_counted => {
            let is_allowed = after.budget.try_count(observed.policy.restart.max_restarts);
            (!is_allowed).then_some(JobFailureReason::BudgetExhausted)
        }
        RestartDecision::Restart { .. } => None,
    };
    if let Some(reason) = fails {
        after.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(reason));
    }
    after.last_deterministic_failure = failure.deterministic_signature().or(after.last_deterministic_failure);
    after.last_failure = Some(failure);
    after
}

/// Whether a replaced stage is kept for a limited time, because its exit is not observed yet.
pub(crate) fn exit_is_awaited(observed: &Observed, instance: &StageInstance, clock: &mut DeadlineClock) -> bool {
    reported_failure(&observed.state)
        .filter(|failure| instance.is_alive() && is_of(failure, instance))
        .is_some_and(|failure| !clock.has_passed_or_wakes_at(failure.failed_at.plus_seconds(EXIT_TIMEOUT_SECONDS)))
}

/// Returns the last failure, if only the other stages have reported it and the job continues.
fn reported_failure(state: &JobState) -> Option<&AttemptFailure> {
    state.last_failure.as_ref().filter(|failure| failure.awaits_exit() && state.outcome().is_none())
}

fn is_of(failure: &AttemptFailure, instance: &StageInstance) -> bool {
    (failure.attempt, failure.rank, failure.incarnation)
        == (instance.attempt, Some(instance.rank), instance.incarnation)
}
