//! The state after a failure: the end of the job, the replacement of the lost stages, or the next attempt.

use std::collections::BTreeSet;
use std::time::Duration;

use stagecoach_api::job::BackoffSpec;

use crate::instance::StageInstance;
use crate::observed::Observed;
use crate::policy::RestartDecision;
use crate::state::{AttemptPhase, JobFailureReason, JobOutcome, JobState};
use crate::time::{DeadlineClock, UnixMillis};
use crate::{AttemptFailure, FailurePolicy, FailureReason, backoff_delay, jittered, replacement, spares};

/// The remedy after a failure.
pub(crate) enum Remedy<'a> {
    /// A spare (an instance that waits to replace a lost stage) was promoted to the lost stage.
    Promotion(&'a StageInstance),
    /// The lost stages start again.
    Replacement(BTreeSet<u32>),
    /// All stages start again in the next attempt.
    NextAttempt,
}

/// Returns the state after a failure: the job ends, or the remedy follows after a back-off. A promotion has no
/// back-off, because the spare has already become the stage. While the promotion of a spare is awaited, the state is
/// unchanged.
pub(crate) fn after_failure(
    observed: &Observed,
    failure: AttemptFailure,
    remedy: Remedy,
    clock: &mut DeadlineClock,
) -> JobState {
    let now = clock.now;
    let is_awaited = match &remedy {
        Remedy::Replacement(lost) => spares::promotion_is_awaited(observed, &failure, lost, clock),
        Remedy::Promotion(_) | Remedy::NextAttempt => false,
    };
    let mut after = observed.clone();
    let state = &mut after.state;
    let is_root_cause = |instance: &&StageInstance| Some(instance.rank) == failure.rank;
    let pod_conditions =
        observed.current_instances().find(is_root_cause).map(|instance| instance.pod_conditions.as_slice());
    let decision = observed.policy.restart_decision(
        &failure,
        pod_conditions.unwrap_or_default(),
        state,
        observed.enough_replicas_train(),
    );
    state.last_deterministic_failure = failure.deterministic_signature().or(state.last_deterministic_failure.take());
    let uncounted = failure.awaits_exit() && decision == RestartDecision::Restart { counted: false };
    state.last_failure = Some(AttemptFailure { uncounted, ..failure });
    let counted = match decision {
        RestartDecision::Fail(reason) => return finished(state, JobOutcome::Failed(reason)),
        RestartDecision::Restart { counted } => counted,
    };
    if !state.budget.try_consume(counted, observed.policy.restart.max_restarts) {
        return finished(state, JobOutcome::Failed(JobFailureReason::BudgetExhausted));
    }
    if is_awaited {
        return observed.state.clone();
    }
    state.failures_without_progress = state.failures_without_progress.saturating_add(1);
    let delay = restart_delay(&observed.policy, state, now);
    let not_before = now.plus(delay);
    match remedy {
        // The other stages would exit before the replacement starts, so all stages restart.
        Remedy::Replacement(_) if !replacement::is_waited_for(observed, delay) => {
            with_next_attempt(&after, not_before, now)
        }
        Remedy::Promotion(promoted) => spares::with_promotion(after.state, promoted.rank, promoted.incarnation),
        Remedy::Replacement(lost) => {
            let mut state =
                replacement::replaced(after.state, lost, spares::incarnation_increment(observed), not_before);
            // an elastic job may train before all its instances exist, so the missing ones must still be created
            state.ranks_to_create.extend(observed.missing_stages());
            state
        }
        Remedy::NextAttempt => with_next_attempt(&after, not_before, now),
    }
}

/// Returns the back-off after the last failure. The first restart since training last made progress is immediate,
/// unless the cluster has no room for the attempt.
fn restart_delay(policy: &FailurePolicy, state: &JobState, now: UnixMillis) -> Duration {
    let BackoffSpec { initial_seconds, max_seconds } = policy.restart.backoff;
    let [initial, max] = [initial_seconds, max_seconds].map(|seconds| Duration::from_secs(seconds.into()));
    let has_room = state.last_failure.as_ref().is_none_or(|failure| failure.reason != FailureReason::Unschedulable);
    match state.failures_without_progress.saturating_sub(u32::from(has_room)) {
        0 => Duration::ZERO,
        failures => jittered(backoff_delay(initial, max, failures), policy.backoff_jitter_percent, now.0),
    }
}

/// Returns the state with the next attempt, which has the desired mesh and revision.
pub(crate) fn with_next_attempt(observed: &Observed, not_before: UnixMillis, now: UnixMillis) -> JobState {
    let mut state = observed.state.clone();
    let highest_used = observed.all_instances().map(|instance| instance.attempt).max().unwrap_or(0);
    state.attempt = observed.desired.attempt(highest_used.max(state.attempt.number).saturating_add(1));
    state.incarnations.clear();
    state.ranks_to_create.clear();
    state.replaced_without_progress.clear();
    state.attempt_phase = AttemptPhase::Running { not_before, all_created: false };
    state.started_at.get_or_insert(now);
    state
}

pub(crate) fn finished(state: &JobState, outcome: JobOutcome) -> JobState {
    JobState { attempt_phase: AttemptPhase::Finished(outcome), ..state.clone() }
}
