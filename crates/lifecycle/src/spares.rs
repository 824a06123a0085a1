//! Spares: processes or pods of an attempt that have no stage yet. They are connected to the group, and have loaded
//! their libraries and the plan. When a stage is lost, its group promotes a spare at once, without asking the caller:
//! the spare becomes the stage's next incarnation. This module only observes the promotion, records it as a
//! replacement, and creates the next spare. `decide` itself replaces a lost stage only if no spare was promoted in
//! time.

use std::collections::BTreeSet;

use stagecoach_api::contract::ExitCode;

use crate::attempt_action::AttemptAction;
use crate::instance::{InstanceState, SpareInstance, StageInstance};
use crate::observed::Observed;
use crate::state::{AttemptPhase, JobState};
use crate::time::{DeadlineClock, UnixMillis};
use crate::{AttemptFailure, FailureReason, cause, cause_order, peer_loss};

/// The time, in seconds, within which the group must promote a spare to a lost stage. After that time, `decide` creates
/// another instance of the stage, which takes much longer to start. A promotion takes milliseconds, and seconds on a
/// busy node.
const PROMOTION_TIMEOUT_SECONDS: u64 = 5;

/// The time, in seconds, for which an exited spare is kept and not replaced. Without this delay, a spare that crashes
/// at its start would be created again without pause.
const EXITED_SPARE_KEPT_SECONDS: u64 = 10;

impl Observed {
    /// Returns the spares of the current attempt.
    pub(crate) fn current_spares(&self) -> impl Iterator<Item = &SpareInstance> {
        self.spares.iter().filter(|spare| spare.attempt == self.state.attempt.number)
    }

    /// Returns the number of spares that a running attempt should have.
    pub(crate) fn wanted_spares(&self) -> u32 {
        if self.policy.replaces_stages { self.policy.spares } else { 0 }
    }
}

/// Whether `instance` is a promoted spare that is not recorded in the state yet. If an instance that was never a spare
/// has a higher incarnation than the state, the state is outdated.
pub(crate) fn is_unrecorded_promotion(state: &JobState, instance: &StageInstance) -> bool {
    instance.spare.is_some()
        && instance.attempt == state.attempt.number
        && instance.rank < state.attempt.mesh.ranks()
        && instance.incarnation > state.incarnation(instance.rank)
}

/// Returns the state of a complete job, with the incarnations that completed it. Older incarnations that still run are
/// removed.
pub(crate) fn with_completed_promotions(observed: &Observed) -> JobState {
    let mut state = observed.state.clone();
    for instance in observed.instances.iter().filter(|instance| is_unrecorded_promotion(&observed.state, instance)) {
        if instance.exit().is_some_and(|exit| exit.contract_code() == Some(ExitCode::Done)) {
            state.incarnations.insert(instance.rank, instance.incarnation);
        }
    }
    state
}

/// Returns the promotion to record next. Among several promotions of one stage, the oldest comes first, because each
/// promotion followed a failure.
pub(crate) fn unrecorded_promotion(observed: &Observed) -> Option<&StageInstance> {
    let unrecorded = observed.instances.iter().filter(|instance| is_unrecorded_promotion(&observed.state, instance));
    unrecorded.min_by_key(|instance| (instance.rank, instance.incarnation))
}

/// Returns the failure of the stage that `promoted` replaces. `None` while the exit is awaited, because the exit
/// determines the remedy.
pub(crate) fn failure_replaced_by(
    observed: &Observed,
    promoted: &StageInstance,
    clock: &mut DeadlineClock,
) -> Option<AttemptFailure> {
    let rank = promoted.rank;
    let Some(lost) = observed.current_instances().find(|instance| instance.rank == rank) else {
        return Some(AttemptFailure::without_exit(
            &observed.state,
            FailureReason::Unknown,
            Some(rank),
            cause::GONE,
            clock.now,
        ));
    };
    match lost.exit() {
        Some(exit) => Some(AttemptFailure::from_exit(&observed.state, lost, exit)),
        None => peer_loss::failure_before_promotion(observed, lost, promoted.since, clock),
    }
}

/// Whether the group continues with `promoted` after this failure. All stages start again if the job does not replace
/// stages, if the failure needs a new attempt, if this rank was replaced already without progress since, or if the old
/// instance exited as done or drained. An old instance that exited because it lost its peers does not matter, because
/// the group had continued without it.
pub(crate) fn group_continues(observed: &Observed, promoted: &StageInstance, failure: &AttemptFailure) -> bool {
    let lost = observed.current_instances().find(|instance| instance.rank == promoted.rank);
    observed.policy.replaces_stages
        && !failure.needs_new_attempt()
        && !observed.state.replaced_without_progress.contains(&promoted.rank)
        && !lost.and_then(StageInstance::exit).is_some_and(cause_order::exited_gracefully)
}

/// Records that a spare became this incarnation of `rank`. The group was complete before the loss, so only the stages
/// that `decide` itself is replacing must still be created.
pub(crate) fn with_promotion(mut state: JobState, rank: u32, incarnation: u32) -> JobState {
    state.incarnations.insert(rank, incarnation);
    state.ranks_to_create.remove(&rank);
    state.replaced_without_progress.insert(rank);
    state.budget.replaced = state.budget.replaced.saturating_add(1);
    if let AttemptPhase::Running { all_created, .. } = &mut state.attempt_phase {
        *all_created = state.ranks_to_create.is_empty();
    }
    state
}

/// Whether spares may still be promoted to all the `lost` stages.
pub(crate) fn promotion_is_awaited(
    observed: &Observed,
    failure: &AttemptFailure,
    lost: &BTreeSet<u32>,
    clock: &mut DeadlineClock,
) -> bool {
    let ready = observed.current_spares().filter(|spare| spare.state == InstanceState::Ready).count();
    // without a fixed time of the loss, the wait would never end
    let Some(lost_at) = lost_at(observed, failure).filter(|lost_at| *lost_at <= clock.now) else { return false };
    ready >= lost.len() && !clock.has_passed_or_wakes_at(lost_at.plus_seconds(PROMOTION_TIMEOUT_SECONDS))
}

/// Returns the time at which the failed stage exited or was reported lost.
fn lost_at(observed: &Observed, failure: &AttemptFailure) -> Option<UnixMillis> {
    let rank = failure.rank?;
    let exited = observed.current_instances().find(|instance| instance.rank == rank && !instance.is_alive());
    let reported = observed.progress.lost.filter(|lost| (lost.rank, lost.incarnation) == (rank, failure.incarnation));
    exited.map(|instance| instance.since).or(reported.map(|lost| lost.since))
}

/// Returns the difference between a stage's recorded incarnation and the next one that `decide` creates. The difference
/// is so large that no two instances have the same incarnation. Every spare may have been promoted to the stage in
/// turn, each with the next incarnation, and may have died unobserved. If a spare was promoted and no spare is left,
/// one more incarnation is skipped, because a last spare may have been promoted unobserved.
pub(crate) fn incarnation_increment(observed: &Observed) -> u32 {
    let number = observed.state.attempt.number;
    let is_promoted = |instance: &StageInstance| instance.attempt == number && instance.spare.is_some();
    let any_promoted = observed.instances.iter().any(is_promoted);
    let listed = u32::try_from(observed.current_spares().count()).unwrap_or(u32::MAX);
    listed.max(observed.wanted_spares()).max(any_promoted.into()).saturating_add(1)
}

/// Returns the actions for the spares of a running attempt. `may_start` allows the creation of new spares.
pub(crate) fn actions_while_running(
    observed: &Observed,
    may_start: bool,
    clock: &mut DeadlineClock,
) -> Vec<AttemptAction> {
    let attempt = observed.state.attempt.number;
    let wanted = observed.wanted_spares() as usize;
    let waiting: BTreeSet<u32> = waiting_spares(observed).collect();
    let surplus = waiting.len().saturating_sub(wanted);
    let mut removed: BTreeSet<u32> = waiting.iter().rev().take(surplus).copied().collect();
    let mut just_exited = 0;
    for spare in observed.current_spares().filter(|spare| !spare.state.is_alive()) {
        if clock.has_passed_or_wakes_at(spare.since.plus_seconds(EXITED_SPARE_KEPT_SECONDS)) {
            removed.insert(spare.number);
        } else {
            just_exited += 1;
        }
    }
    let mut actions = Vec::new();
    if !removed.is_empty() {
        actions.push(AttemptAction::RemoveSpares { attempt, numbers: removed });
    }
    // a stage that waits for resources takes precedence over a spare
    let stage_is_pending = observed.current_instances().any(|instance| instance.state.is_pending());
    let missing = wanted.saturating_sub(waiting.len() + just_exited);
    if may_start && !stage_is_pending && missing > 0 {
        let in_attempt = observed.instances.iter().filter(|instance| instance.attempt == attempt);
        let used: BTreeSet<u32> = in_attempt
            .filter_map(|instance| instance.spare)
            .chain(observed.current_spares().map(|spare| spare.number))
            .collect();
        let numbers = (0..=u32::MAX).filter(|number| !used.contains(number)).take(missing).collect();
        actions.push(AttemptAction::StartSpares { attempt, numbers });
    }
    actions
}

/// Returns the actions for the spares of a complete job. A waiting spare does not exit by itself. A spare that was
/// promoted by mistake, to a stage that was alive and then finished, does not exit by itself either.
pub(crate) fn actions_when_complete(observed: &Observed, clock: &mut DeadlineClock) -> Vec<AttemptAction> {
    let attempt = observed.state.attempt.number;
    let in_attempt = observed.instances.iter().filter(|instance| instance.attempt == attempt);
    let alive = in_attempt.filter(|instance| instance.is_alive() && !instance.is_terminating());
    let numbers: BTreeSet<u32> = alive.filter_map(|instance| instance.spare).chain(waiting_spares(observed)).collect();
    let mut actions = Vec::new();
    if !numbers.is_empty() {
        actions.push(AttemptAction::RemoveSpares { attempt, numbers });
    }
    let terminating = observed.current_spares().filter(|spare| spare.state.is_terminating());
    if clock.any_passed_or_wake_at(terminating.map(|spare| spare.since.plus_seconds(observed.policy.grace_seconds))) {
        actions.push(AttemptAction::KillInstances { attempt });
    }
    actions
}

/// Returns the numbers of the spares of the current attempt that are alive and not terminating.
fn waiting_spares(observed: &Observed) -> impl Iterator<Item = u32> {
    let waits = |spare: &&SpareInstance| spare.state.is_alive() && !spare.state.is_terminating();
    observed.current_spares().filter(waits).map(|spare| spare.number)
}
