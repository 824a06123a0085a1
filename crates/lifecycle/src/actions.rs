//! The actions that a state requires. `decide` derives them again from every observation, so no action is lost when the
//! caller crashes.

use std::collections::{BTreeMap, BTreeSet};

use crate::attempt_action::AttemptAction;
use crate::instance::{InstanceRef, InstanceState, StageInstance};
use crate::observed::Observed;
use crate::state::{AttemptPhase, JobOutcome};
use crate::time::DeadlineClock;
use crate::{peer_loss, spares};

/// The shortest grace period of a deletion, in seconds. With a period of 0, the API server would delete the pod object
/// before its containers have stopped.
pub const MIN_GRACE_SECONDS: u64 = 1;
/// The grace period, in seconds, of instances of an earlier attempt. They have nothing to save, and exit by themselves
/// after they lose their peers.
const OLDER_ATTEMPT_GRACE_SECONDS: u64 = 10;
/// The grace period, in seconds, of instances of an earlier attempt that were still starting. They have nothing to
/// save. The first process of a container ignores SIGTERM until it installs a handler, so a longer period would only
/// delay its exit.
const UNREADY_GRACE_SECONDS: u64 = MIN_GRACE_SECONDS;
/// The grace period, in seconds, of drained instances that are not observed as ready. They have little to save, because
/// they can have trained only since the last check of their readiness.
const DRAINED_UNREADY_GRACE_SECONDS: u64 = 30;

/// Returns the actions for the observed state.
pub(crate) fn actions_for(observed: &Observed, clock: &mut DeadlineClock) -> Vec<AttemptAction> {
    let mut actions = deletions(observed, clock);
    let state = &observed.state;
    let number = state.attempt.number;
    if replaced_must_be_removed(observed, clock) {
        actions.push(AttemptAction::RemoveReplaced { attempt: number, incarnations: state.incarnations.clone() });
    }
    if let AttemptPhase::Running { not_before, all_created: false } = state.attempt_phase
        && !older_instances_remain(observed, clock)
        && !observed.has_failed_instance()
        && clock.has_passed_or_wakes_at(not_before)
    {
        let incarnations: BTreeMap<_, _> =
            state.ranks_to_create.iter().map(|rank| (*rank, state.incarnation(*rank))).collect();
        actions.push(match incarnations.is_empty() {
            true => {
                AttemptAction::StartAttempt { number, mesh: state.attempt.mesh, instances: state.attempt.instances() }
            }
            false => AttemptAction::ReplaceStages { attempt: number, incarnations },
        });
    }
    if let Some(incarnations) = instances_left_without_group(observed) {
        actions.push(AttemptAction::RemoveReplaced { attempt: number, incarnations });
    }
    match state.attempt_phase {
        AttemptPhase::Running { not_before, all_created } => {
            let may_start = all_created
                && observed.wanted_spares() > 0
                && !older_instances_remain(observed, clock)
                && clock.has_passed_or_wakes_at(not_before);
            actions.extend(spares::actions_while_running(observed, may_start, clock));
        }
        AttemptPhase::Finished(JobOutcome::Complete) => actions.extend(spares::actions_when_complete(observed, clock)),
        AttemptPhase::Idle | AttemptPhase::Draining | AttemptPhase::Finished(JobOutcome::Failed(_)) => {}
    }
    actions
}

/// Returns the actions that end instances, for every attempt whose instances must be deleted.
fn deletions(observed: &Observed, clock: &mut DeadlineClock) -> Vec<AttemptAction> {
    let state = &observed.state;
    let attempts: BTreeSet<u64> = observed.all_instances().map(|instance| instance.attempt).collect();
    let mut actions = Vec::new();
    for attempt in attempts.into_iter().filter(|attempt| must_be_deleted(observed, *attempt)) {
        let is_over = attempt != state.attempt.number;
        let grace_seconds = grace_seconds(observed, is_over);
        let unready_grace_seconds =
            grace_seconds.min(if is_over { UNREADY_GRACE_SECONDS } else { DRAINED_UNREADY_GRACE_SECONDS });
        let in_attempt = || observed.all_instances().filter(|instance| instance.attempt == attempt);
        // Exited instances are kept during a drain, for their exit codes, and after the job's end, for their logs.
        let delete_exited = matches!(state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Running { .. });
        let must_end = |state: &InstanceState| !state.is_terminating() && (state.is_alive() || delete_exited);
        if in_attempt().any(|instance| must_end(instance.state)) {
            actions.push(AttemptAction::DeleteInstances { attempt, grace_seconds, unready_grace_seconds });
        }
        let terminating = in_attempt().filter(|instance| instance.state.is_terminating());
        let deadlines = terminating.map(|instance| instance.since.plus_seconds(grace_seconds));
        if clock.any_passed_or_wake_at(deadlines) {
            actions.push(AttemptAction::KillInstances { attempt });
        }
    }
    actions
}

/// Whether the old instances of replaced stages, if any remain, must be removed.
fn replaced_must_be_removed(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    let mut left = observed.replaced_instances().filter(|instance| !instance.is_terminating());
    match observed.state.attempt_phase {
        AttemptPhase::Running { .. } => {
            let mut replaced = observed.replaced_instances();
            let exit_is_awaited = replaced.any(|instance| peer_loss::exit_is_awaited(observed, instance, clock));
            left.next().is_some() && !exit_is_awaited
        }
        AttemptPhase::Finished(JobOutcome::Complete) => left.any(StageInstance::is_alive),
        AttemptPhase::Idle | AttemptPhase::Draining | AttemptPhase::Finished(JobOutcome::Failed(_)) => false,
    }
}

/// Returns, for a complete job, the instances that have not joined the group (the stages that train together), because
/// the job trained without their replicas. Returns `None` if there are none. `RemoveReplaced` removes the incarnations
/// below the listed one, so each rank is listed with the incarnation of its instance plus one.
fn instances_left_without_group(observed: &Observed) -> Option<BTreeMap<u32, u32>> {
    let state = &observed.state;
    if state.attempt_phase != AttemptPhase::Finished(JobOutcome::Complete) {
        return None;
    }
    let has_no_group = |instance: &&StageInstance| observed.may_lack_replicas() && instance.state.is_unready();
    let next = |instance: &StageInstance| (instance.rank, instance.incarnation.saturating_add(1));
    let removed: BTreeMap<u32, u32> = observed.current_instances().filter(has_no_group).map(next).collect();
    (!removed.is_empty()).then_some(removed)
}

/// Whether an attempt's instances must be deleted.
fn must_be_deleted(observed: &Observed, attempt: u64) -> bool {
    match observed.state.attempt_phase {
        AttemptPhase::Running { .. } => attempt != observed.state.attempt.number,
        // The pods of a complete job are kept for their logs.
        AttemptPhase::Finished(JobOutcome::Complete) => attempt != observed.state.attempt.number,
        AttemptPhase::Idle | AttemptPhase::Draining | AttemptPhase::Finished(JobOutcome::Failed(_)) => true,
    }
}

/// Returns the grace period of an attempt's instances, in seconds.
fn grace_seconds(observed: &Observed, is_over: bool) -> u64 {
    let most = if is_over { OLDER_ATTEMPT_GRACE_SECONDS } else { u64::MAX };
    observed.policy.grace_seconds.min(most).max(MIN_GRACE_SECONDS)
}

/// Whether a drain must still wait for an instance or a spare of any attempt.
pub(crate) fn instances_remain(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    remain_within_timeout(observed, &|_| true, observed.policy.grace_seconds, clock)
}

/// Whether a new attempt must still wait for an instance or a spare of an older attempt.
fn older_instances_remain(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    let number = observed.state.attempt.number;
    remain_within_timeout(observed, &|instance| instance.attempt != number, 0, clock)
}

/// Whether an instance that matches `predicate` is alive. A terminating instance counts only for `grace_seconds` plus
/// `terminationTimeoutSeconds` after its termination was requested. After that time, its node is considered dead. If
/// its process still runs, it can't commit checkpoints, because only the newest group has the fence, which gives the
/// right to write checkpoints on the volume.
fn remain_within_timeout(
    observed: &Observed,
    predicate: &dyn Fn(&InstanceRef) -> bool,
    grace_seconds: u64,
    clock: &mut DeadlineClock,
) -> bool {
    let timeout = grace_seconds.saturating_add(observed.policy.restart.termination_timeout_seconds.into());
    let mut remain = false;
    for instance in observed.all_instances().filter(|instance| instance.state.is_alive() && predicate(instance)) {
        remain |=
            !instance.state.is_terminating() || !clock.has_passed_or_wakes_at(instance.since.plus_seconds(timeout));
    }
    remain
}
