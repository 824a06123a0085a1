//! Switches that disable individual guards.

use stagecoach_lifecycle::*;

use crate::model::cluster_state::NOW;

/// The guards that maintain the invariants. Each of them can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The record replaces only the version that was read.
    CompareAndSwap,
    /// The record is written before any action even if it is unchanged, so that no action follows from a stale version.
    ConfirmTheRead,
    /// Like `ConfirmTheRead`, for decisions that only delete pods.
    ConfirmBeforeDeleting,
    /// The record is written before any action.
    RecordFirst,
    /// No pod is created while instances of older attempts remain.
    WaitForOlder,
    /// The number of a new attempt is above the numbers of all pods, not only above the recorded number.
    NumberAbovePods,
    /// Pods are listed by a consistent read, not from a cache.
    LiveList,
    /// Pods recorded as created are not created again.
    PodsCreated,
    /// Only the holder of the newest fence commits.
    Fence,
    /// The operator waits for terminating pods only until a timeout.
    TerminationTimeout,
    /// A restart that counts consumes one restart of the budget.
    Budget,
    /// The replacement of a lost stage has a new incarnation.
    Incarnations,
    /// The incarnation of a replacement differs from every incarnation that an unobserved promoted spare may have.
    SpareIncarnations,
    /// A promotion counts as a replacement.
    PromotionCounts,
    /// No pod is created while spares of older attempts remain.
    WaitForSpares,
    /// Spares of a complete job are removed.
    RemoveSpares,
    /// No spare is created while a stage waits to be scheduled.
    StagesFirst,
    /// After a promotion, only stages with another pending replacement are created.
    NothingToCreate,
    /// A group forms only with `restart.minDataParallel` replicas.
    EnoughReplicas,
    /// If replicas may be missing, a job is complete when the first replica is done.
    OneReplicaCompletes,
    /// The operator returns the reservation of an evicted job to the queue only when none of its pods is alive.
    ReleaseLast,
    /// The operator removes an instance that still waits for a group, because the job completed without its replica.
    RemoveWaiting,
}

/// Returns the decision of the state machine without the disabled guard.
pub(super) fn decide_without(observed: &Observed, disabled_guard: Option<Guard>) -> Decision {
    let mut observed = observed.clone();
    match (disabled_guard, &mut observed.state.attempt_phase) {
        (Some(Guard::PodsCreated), AttemptPhase::Running { all_created, .. }) => *all_created = false,
        (Some(Guard::NumberAbovePods), _) => {
            let number = observed.state.attempt.number;
            observed.instances.retain(|instance| instance.attempt <= number);
        }
        (Some(Guard::WaitForSpares), _) => {
            let number = observed.state.attempt.number;
            observed.spares.retain(|spare| spare.attempt == number);
        }
        _ => {}
    }
    let mut decision = decide(&observed, NOW);
    match (disabled_guard, &decision.state.attempt_phase) {
        (Some(Guard::WaitForOlder), AttemptPhase::Running { not_before, all_created: false }) if *not_before <= NOW => {
            decision.actions.retain(|action| !matches!(action, AttemptAction::StartAttempt { .. }));
            decision.actions.push(start_of(decision.state.attempt));
        }
        (Some(Guard::Budget), _) => decision.state.budget = observed.state.budget,
        (Some(Guard::PromotionCounts), _) if is_promotion(&observed.state, &decision.state) => {
            decision.state.budget = observed.state.budget;
        }
        (Some(Guard::NothingToCreate), AttemptPhase::Running { not_before, .. })
            if is_promotion(&observed.state, &decision.state) =>
        {
            decision.state.attempt_phase = AttemptPhase::Running { not_before: *not_before, all_created: false };
            decision.actions.push(start_of(decision.state.attempt));
        }
        (Some(Guard::RemoveWaiting), AttemptPhase::Finished(JobOutcome::Complete)) => {
            decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveReplaced { .. }));
        }
        (Some(Guard::RemoveSpares), AttemptPhase::Finished(_)) => {
            decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveSpares { .. }));
        }
        (Some(Guard::StagesFirst), AttemptPhase::Running { all_created: true, .. }) => {
            start_spares_early(&mut observed, &mut decision);
        }
        (Some(Guard::SpareIncarnations), _) if decision.state.attempt == observed.state.attempt => {
            ignore_spares_incarnations(&observed, &mut decision);
        }
        (Some(Guard::Incarnations), _) => {
            let replaced = |action: &AttemptAction| matches!(action, AttemptAction::ReplaceStages { .. });
            if let Some(at) = decision.actions.iter().position(replaced) {
                decision.actions[at] = start_of(decision.state.attempt);
                decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveReplaced { .. }));
            }
        }
        _ => {}
    }
    decision
}

/// Returns the action that creates all instances of an attempt.
fn start_of(attempt: Attempt) -> AttemptAction {
    AttemptAction::StartAttempt { number: attempt.number, mesh: attempt.mesh, instances: attempt.instances() }
}

/// Changes the decision so that spares start even while a stage waits to be scheduled.
fn start_spares_early(observed: &mut Observed, decision: &mut Decision) {
    observed
        .instances
        .iter_mut()
        .filter(|instance| instance.state == InstanceState::Pending)
        .for_each(|instance| instance.state = InstanceState::Starting);
    let starts_spares = |action: &AttemptAction| matches!(action, AttemptAction::StartSpares { .. });
    if !decision.actions.iter().any(starts_spares) {
        let unguarded = decide(observed, NOW);
        if unguarded.state == decision.state {
            decision.actions.extend(unguarded.actions.into_iter().filter(starts_spares));
        }
    }
}

/// Changes the decision so that replaced stages get the next incarnation, which a spare may already have.
fn ignore_spares_incarnations(observed: &Observed, decision: &mut Decision) {
    let next = |rank: u32| observed.state.incarnation(rank) + 1;
    let replaced: Vec<u32> =
        decision.state.ranks_to_create.difference(&observed.state.ranks_to_create).copied().collect();
    for rank in replaced {
        decision.state.incarnations.insert(rank, next(rank));
        for action in &mut decision.actions {
            if let AttemptAction::ReplaceStages { incarnations, .. }
            | AttemptAction::RemoveReplaced { incarnations, .. } = action
            {
                incarnations.entry(rank).and_modify(|incarnation| *incarnation = next(rank));
            }
        }
    }
}

/// Whether a promotion was recorded and is the only replacement.
fn is_promotion(before: &JobState, after: &JobState) -> bool {
    after.budget.replaced > before.budget.replaced && after.ranks_to_create.is_subset(&before.ranks_to_create)
}
