//! Root-cause analysis. A failing stage may make other stages exit too. This module determines the first cause from
//! exits, reports of peers, refusals to create instances, and timeouts.

use stagecoach_api::contract::ExitCode;

use crate::cause_order::{CauseOrder, cause_order};
use crate::failure::{AttemptFailure, FailureReason};
use crate::instance::{Exit, StageInstance};
use crate::observed::Observed;
use crate::time::DeadlineClock;
use crate::timeouts::{refusal_failure, timeout_failure};
use crate::{UnixMillis, peer_loss};

/// The number of seconds to wait for the exit of the root cause after the first exit of a stage that only lost a peer.
const ROOT_CAUSE_SETTLE_SECONDS: u64 = 10;

/// The message of a failure of a stage whose pod or process was deleted.
pub(crate) const GONE: &str = "the pod or process is gone and its exit was not observed";

/// The message of a failure in which the pods or processes of all stages were deleted.
const ALL_GONE: &str = "all pods or processes are gone and their exits were not observed: they were deleted";

/// Returns the root cause, if the attempt has failed and enough exits were observed to determine it.
pub(crate) fn root_cause(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    cause_of_exits(observed, all_created, clock)
        .or_else(|| peer_loss::cause(observed, all_created, clock))
        .or_else(|| refusal_failure(observed, all_created, clock))
        .or_else(|| timeout_failure(observed, all_created, clock))
}

/// Returns the cause according to the instances that have exited or are terminating.
fn cause_of_exits(observed: &Observed, all_created: bool, clock: &mut DeadlineClock) -> Option<AttemptFailure> {
    let exits = Exits::of(observed, all_created);
    match exits.first {
        Some((instance, exit)) if exits.cause_order(exit) == CauseOrder::RootCause => {
            Some(AttemptFailure::from_exit(&observed.state, instance, exit))
        }
        _ if exits.deadline().is_some_and(|deadline| !clock.has_passed_or_wakes_at(deadline)) => None,
        _ => exits.conclusion(clock.now),
    }
}

/// The instances of an attempt that have exited, and the instances that should exit.
struct Exits<'a> {
    observed: &'a Observed,
    /// The most likely cause among the instances that exited before they were done.
    first: Option<(&'a StageInstance, &'a Exit)>,
    /// The earliest time at which an instance began to terminate, or exited after SIGTERM. The other instances then
    /// also save a checkpoint, so they may take the whole grace period to exit.
    saving_since: Option<UnixMillis>,
    /// The rank of a stage that the cluster has not started.
    unstarted: Option<u32>,
    /// The rank of a stage whose instance was deleted, so that its exit can't be observed.
    deleted: Option<u32>,
    /// An instance that has not exited, and must end because the attempt failed.
    alive: Option<&'a StageInstance>,
}

impl<'a> Exits<'a> {
    fn of(observed: &'a Observed, all_created: bool) -> Exits<'a> {
        let unstarted = observed.unstarted_stage(all_created);
        let order = |exit: &Exit| cause_order(exit, unstarted.is_some());
        let failed = || {
            let ended = observed.current_instances().filter_map(|instance| Some((instance, instance.exit()?)));
            ended.filter(|(_, exit)| exit.contract_code() != Some(ExitCode::Done))
        };
        let first = failed().min_by_key(|(instance, exit)| (order(exit), instance.since, instance.rank));
        let terminating = observed.current_instances().filter(|instance| instance.is_terminating());
        let drained = failed().filter(|(_, exit)| order(exit) == CauseOrder::Drained).map(|(instance, _)| instance);
        // a replacement that has joined no group has nothing to save, so its exit is not awaited
        let has_drained = first.is_some_and(|(_, exit)| order(exit) == CauseOrder::Drained);
        let is_new = |instance: &StageInstance| has_drained && instance.incarnation > 0 && instance.state.is_unready();
        Exits {
            observed,
            first,
            saving_since: terminating.chain(drained).map(|instance| instance.since).min(),
            unstarted,
            deleted: observed.deleted_stages(all_created).next(),
            alive: observed.current_instances().find(|instance| instance.is_alive() && !is_new(instance)),
        }
    }

    fn cause_order(&self, exit: &Exit) -> CauseOrder {
        cause_order(exit, self.unstarted.is_some())
    }

    /// Returns the deadline for the exits of the other stages, or `None` if no exit is awaited. A terminating stage
    /// makes all stages save a checkpoint, so they may take the whole grace period. Without a terminating stage, the
    /// deadline leaves time to observe the exit of the failed stage, because its peers may exit first.
    fn deadline(&self) -> Option<UnixMillis> {
        self.alive?;
        let grace_seconds = self.observed.policy.grace_seconds;
        match (self.saving_since, self.first) {
            (Some(since), _) => Some(since.plus_seconds(grace_seconds.saturating_add(ROOT_CAUSE_SETTLE_SECONDS))),
            (None, Some((instance, _))) if self.deleted.is_none() => {
                Some(instance.since.plus_seconds(ROOT_CAUSE_SETTLE_SECONDS))
            }
            (None, _) => None,
        }
    }

    /// Returns the cause, if no other exit is awaited.
    fn conclusion(&self, now: UnixMillis) -> Option<AttemptFailure> {
        let Exits { observed, first, saving_since, unstarted, deleted, alive } = *self;
        let state = &observed.state;
        if let (Some(_), Some((instance, _)), None) = (unstarted, first, saving_since) {
            let name = state.attempt.mesh.name(instance.rank);
            let message = format!("was not started before {name} gave up waiting for it");
            return Some(AttemptFailure::without_exit(state, FailureReason::Unschedulable, unstarted, message, now));
        }
        if deleted.is_some() {
            return Some(match observed.current_instances().next() {
                None => AttemptFailure::without_exit(state, FailureReason::Drained, None, ALL_GONE, now),
                Some(_) => AttemptFailure::without_exit(state, FailureReason::Unknown, deleted, GONE, now),
            });
        }
        let terminating = observed.current_instances().find(|instance| instance.is_terminating());
        match (first, alive) {
            (None, _) if saving_since.is_none() => None,
            // if a group continues to train, the instance that exited or hangs was not in that group
            (None, Some(alive)) if observed.enough_replicas_train() => {
                Some(self.failure_of_unending(terminating.unwrap_or(alive), now))
            }
            (Some((instance, exit)), _) if alive.is_none() || observed.enough_replicas_train() => {
                Some(AttemptFailure::from_exit(state, instance, exit))
            }
            (_, alive) => alive.map(|alive| self.failure_of_unending(alive, now)),
        }
    }

    /// Returns the failure of an instance that should have ended.
    fn failure_of_unending(&self, instance: &StageInstance, now: UnixMillis) -> AttemptFailure {
        let problem = "its peers lost it or it does not terminate";
        peer_loss::failure_of_unresponsive(self.observed, instance.rank, problem, now)
    }
}
