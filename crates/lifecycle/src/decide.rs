//! The state machine. The attempt number never decreases: every attempt increments it, and a replacement of lost stages
//! leaves it unchanged.
//!
//! ```text
//!                 start                        failure, restart left (after a back-off:
//!   ┌──────┐   (attempt + 1)   ┌─────────┐  attempt + 1, or a new incarnation of the lost stages)
//!   │ Idle ├──────────────────►│ Running ├──────────┐
//!   └──────┘                   │         │◄─────────┘
//!       ▲                      └┬──┬───▲─┘
//!       │  all exited,  suspend,│  │   │ all exited, to run with other stages
//!       │  suspended    scale,  │  │   │ or another spec (attempt + 1)
//!       │               change  ▼  │   │
//!       │                 ┌────────┴─┐ │
//!       └─────────────────┤ Draining ├─┘
//!                         └────┬─────┘
//!             all done         │   │  all done; failure that is final; budget or deadline passed
//!                              ▼   ▼
//!                         ┌──────────┐
//!                         │ Finished │  Complete or Failed, for ever
//!                         └──────────┘
//! ```
//!
//! If the job is suspended or no longer admitted when all instances of its attempt have already exited, the attempt
//! goes back to Idle without draining. `decide` makes at most one transition. Actions depend on the new state and the
//! observation, never on the transition (`actions`). A caller that crashes after it stored the state therefore gets the
//! same actions again.

use stagecoach_api::contract::ExitCode;
use stagecoach_api::job::JobPhase;

use crate::actions;
use crate::after_failure::{Remedy, after_failure, finished, with_next_attempt};
use crate::attempt_action::AttemptAction;
use crate::instance::{InstanceState, StageInstance};
use crate::observed::{Admission, Desired, Observed};
use crate::state::{AttemptPhase, JobFailureReason, JobOutcome, JobState};
use crate::time::{DeadlineClock, UnixMillis};
use crate::{cause, peer_loss, replacement, spares};

/// The number of attempts by which an instance may be ahead of the stored state. An instance can be ahead because the
/// stored state was lost, or replaced by an older copy. An instance with a higher attempt number is implausible, and
/// incrementing that number could overflow, so `decide` ignores the instance.
const MAX_ATTEMPTS_AHEAD: u64 = 1_000_000;

/// The state to store, and the actions to take afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The next state, to be stored before any action.
    pub state: JobState,
    /// The actions, in their order. Each is idempotent.
    pub actions: Vec<AttemptAction>,
    /// The time of the next decision if nothing changes; `None` if only a change requires a decision.
    pub wake_at: Option<UnixMillis>,
    /// The phase shown to the user.
    pub job_phase: JobPhase,
    /// The number of replicas that train: the smallest number of ready instances of any stage. 0 if these replicas are
    /// too few to train.
    pub training_replicas: u32,
    /// Whether an instance of any attempt may still use resources: it is alive, and the time that `decide` waits for
    /// its end has not passed. While this is true, the queue must keep the resources that it has reserved for the job.
    pub instances_remain: bool,
}

/// Returns the next state and the actions for it, given an observation.
pub fn decide(observed: &Observed, now: UnixMillis) -> Decision {
    let mut clock = DeadlineClock::new(now);
    let mut observed = observed.clone();
    let highest = observed.state.attempt.number.saturating_add(MAX_ATTEMPTS_AHEAD);
    observed.instances.retain(|instance| instance.attempt <= highest);
    observed.spares.retain(|spare| spare.attempt <= highest);
    observed.state.clamp_times(now, now.plus(observed.policy.max_backoff()));
    record_progress(&mut observed);
    observed.state = peer_loss::with_observed_exit(&observed);
    observed.state = next_state(&observed, &mut clock);
    let actions = actions::actions_for(&observed, &mut clock);
    let training_replicas = match observed.state.attempt_phase {
        AttemptPhase::Running { .. } => observed.training_replicas(),
        AttemptPhase::Idle | AttemptPhase::Draining | AttemptPhase::Finished(_) => 0,
    };
    let job_phase = job_phase(&observed, training_replicas);
    let instances_remain = instances_remain(&observed, &mut clock);
    Decision {
        state: observed.state,
        actions,
        wake_at: clock.next_deadline,
        job_phase,
        training_replicas,
        instances_remain,
    }
}

/// Whether an instance of any attempt may still use resources. `decide` stops waiting for these instances at a timeout.
/// The timeout affects `Decision::wake_at` only if the job must then return its admission to the queue.
fn instances_remain(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    let has_attempt = matches!(observed.state.attempt_phase, AttemptPhase::Running { .. } | AttemptPhase::Draining);
    match has_attempt || observed.desired.admission == Admission::NotRequired {
        true => actions::instances_remain(observed, &mut DeadlineClock::new(clock.now)),
        false => actions::instances_remain(observed, clock),
    }
}

/// Records progress. A new checkpoint resets the restart budget. A finished step beyond all earlier steps resets the
/// back-off and the record of replaced stages.
fn record_progress(observed: &mut Observed) {
    let terminations = || observed.instances.iter().filter_map(|instance| instance.exit()?.termination.as_ref());
    let checkpoint_step =
        terminations().filter_map(|report| report.checkpoint_step).max().max(observed.progress.checkpoint_step);
    let finished_steps = terminations()
        .filter_map(|report| report.finished_steps)
        .max()
        .max(observed.progress.finished_steps)
        .max(checkpoint_step);
    if let Some(outcome) = observed.state.outcome() {
        // After the deadline, stages that still train save before they exit, so their progress is recorded. After any
        // other outcome, the stored progress does not change.
        if *outcome == JobOutcome::Failed(JobFailureReason::DeadlineExceeded) {
            observed.state.checkpoint_step = observed.state.checkpoint_step.max(checkpoint_step);
            observed.state.max_finished_steps = observed.state.max_finished_steps.max(finished_steps);
        }
        return;
    }
    if checkpoint_step > observed.state.checkpoint_step {
        observed.state.checkpoint_step = checkpoint_step;
        observed.state.budget.reset();
    }
    if finished_steps > observed.state.max_finished_steps {
        observed.state.max_finished_steps = finished_steps;
        observed.state.failures_without_progress = 0;
        observed.state.replaced_without_progress.clear();
    }
}

/// Returns the state after at most one transition.
fn next_state(observed: &Observed, clock: &mut DeadlineClock) -> JobState {
    let state = &observed.state;
    match state.attempt_phase {
        AttemptPhase::Finished(_) => state.clone(),
        AttemptPhase::Idle if !observed.desired.may_run() => state.clone(),
        AttemptPhase::Idle => with_next_attempt(observed, clock.now, clock.now),
        AttemptPhase::Running { .. } | AttemptPhase::Draining if all_completed(observed) => {
            finished(&spares::with_completed_promotions(observed), JobOutcome::Complete)
        }
        AttemptPhase::Draining => next_from_draining(observed, clock),
        AttemptPhase::Running { not_before, all_created } => {
            next_from_running(observed, not_before, all_created, clock)
        }
    }
}

fn next_from_running(
    observed: &Observed,
    not_before: UnixMillis,
    all_created: bool,
    clock: &mut DeadlineClock,
) -> JobState {
    let Observed { desired, policy, state, .. } = observed;
    let number = state.attempt.number;
    let is_newer = |instance: &StageInstance| {
        instance.attempt == number && instance.incarnation > state.incarnation(instance.rank)
    };
    let is_ahead = |instance: &StageInstance| is_newer(instance) && !spares::is_unrecorded_promotion(state, instance);
    if observed.all_instances().any(|instance| instance.attempt > number) || observed.instances.iter().any(is_ahead) {
        // The stored state is older than the instances, because it was lost or restored from an older copy. The next
        // attempt must not reuse a number.
        return with_next_attempt(observed, not_before, clock.now);
    }
    let deadline =
        policy.active_deadline_seconds.zip(state.started_at).map(|(seconds, started)| started.plus_seconds(seconds));
    if deadline.is_some_and(|deadline| clock.has_passed_or_wakes_at(deadline)) {
        return finished(state, JobOutcome::Failed(JobFailureReason::DeadlineExceeded));
    }
    if !desired.may_run() || !desired.is_of(&state.attempt) {
        let mut state = state.clone();
        let may_save = observed.current_instances().chain(observed.instances.iter().filter(|other| is_newer(other)));
        if may_save.map(|instance| &instance.state).any(InstanceState::is_alive)
            || observed.current_spares().any(|spare| spare.state.is_alive())
        {
            state.attempt_phase = AttemptPhase::Draining;
            return state;
        }
        return match desired.may_run() {
            true => with_next_attempt(observed, not_before, clock.now),
            false => idle(state),
        };
    }
    // Promotions are checked before the root cause, because the stage that a spare has replaced must not be replaced
    // again.
    if let Some(promoted) = spares::unrecorded_promotion(observed) {
        let Some(failure) = spares::failure_replaced_by(observed, promoted, clock) else { return state.clone() };
        let remedy = match spares::group_continues(observed, promoted, &failure) {
            true => Remedy::Promotion(promoted),
            false => Remedy::NextAttempt,
        };
        return after_failure(observed, failure, remedy, clock);
    }
    if let Some(failure) = cause::root_cause(observed, all_created, clock) {
        let lost = replacement::replaceable_stages(observed, &failure, all_created);
        let remedy = if lost.is_empty() { Remedy::NextAttempt } else { Remedy::Replacement(lost) };
        return after_failure(observed, failure, remedy, clock);
    }
    let mut state = state.clone();
    let all_created =
        all_created || (observed.current_instances().next().is_some() && observed.missing_stages().next().is_none());
    if all_created {
        state.ranks_to_create.clear();
    }
    state.attempt_phase = AttemptPhase::Running { not_before, all_created };
    with_admitted_replicas(state, desired)
}

/// Returns the state of a running attempt with the replicas that its queue admits now. The instances of newly admitted
/// replicas must still be created.
fn with_admitted_replicas(mut state: JobState, desired: &Desired) -> JobState {
    let before = state.attempt.instances();
    state.attempt.admitted_replicas = desired.admitted_replicas;
    let added = before..state.attempt.instances();
    if let AttemptPhase::Running { all_created, .. } = &mut state.attempt_phase
        && !added.is_empty()
    {
        // an attempt that starts creates the instances of all its ranks
        let is_starting = !*all_created && state.ranks_to_create.is_empty();
        if !is_starting {
            state.ranks_to_create.extend(added);
        }
        *all_created = false;
    }
    state
}

/// Returns the state after a drain. The state stays the same until all instances have exited or their timeout has
/// passed.
fn next_from_draining(observed: &Observed, clock: &mut DeadlineClock) -> JobState {
    if actions::instances_remain(observed, clock) {
        return observed.state.clone();
    }
    match observed.desired.may_run() {
        true => with_next_attempt(observed, clock.now, clock.now),
        false => idle(observed.state.clone()),
    }
}

/// Returns the state without an attempt. The active deadline starts again with the next attempt, as for a Kubernetes
/// Job. The time during which a job is suspended or waits in a queue does not count.
fn idle(mut state: JobState) -> JobState {
    state.attempt_phase = AttemptPhase::Idle;
    state.started_at = None;
    state
}

/// Whether training is complete. A promoted spare that is done counts, even if its promotion is not recorded. If
/// replicas may be missing, one done instance of each stage is enough, because an instance is done only when a group
/// has trained all steps.
fn all_completed(observed: &Observed) -> bool {
    let state = &observed.state;
    let promoted = || observed.instances.iter().filter(|instance| spares::is_unrecorded_promotion(state, instance));
    let done = |rank| {
        observed.current_instances().chain(promoted()).any(|instance| {
            instance.rank == rank && instance.exit().is_some_and(|exit| exit.contract_code() == Some(ExitCode::Done))
        })
    };
    let done = state.attempt.mesh.complete_replicas(done);
    done > 0 && (observed.may_lack_replicas() || done == state.attempt.mesh.data_parallel)
}

/// Returns the phase shown to the user.
fn job_phase(observed: &Observed, training_replicas: u32) -> JobPhase {
    let state = &observed.state;
    match state.attempt_phase {
        AttemptPhase::Idle if observed.desired.suspend => JobPhase::Suspended,
        AttemptPhase::Idle => JobPhase::Pending,
        AttemptPhase::Draining => JobPhase::Draining,
        AttemptPhase::Finished(JobOutcome::Complete) => JobPhase::Complete,
        AttemptPhase::Finished(JobOutcome::Failed(_)) => JobPhase::Failed,
        AttemptPhase::Running { .. } if training_replicas > 0 => JobPhase::Running,
        AttemptPhase::Running { .. } if observed.current_instances().any(|instance| instance.is_alive()) => {
            JobPhase::Starting
        }
        AttemptPhase::Running { .. } if state.failures_without_progress > 0 => JobPhase::Restarting,
        AttemptPhase::Running { .. } => JobPhase::Starting,
    }
}
