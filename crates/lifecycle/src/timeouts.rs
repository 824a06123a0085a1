//! Detects failures in which no stage process exits: the cluster refuses to create a pod, or a timeout expires.

use crate::UnixMillis;
use crate::failure::{AttemptFailure, FailureReason};
use crate::instance::{InstanceState, StageInstance};
use crate::observed::Observed;
use crate::time::DeadlineClock;

/// The time, in seconds, for which an attempt keeps its instances while the cluster refuses to create another one. If a
/// quota is full only because of terminating instances, it has room again within this time.
const CREATION_REFUSED_GRACE_SECONDS: u64 = 10;

/// Returns the failure for a refusal to create an instance while other instances of the attempt are alive. The attempt
/// fails, because its live instances would otherwise occupy resources for as long as the refusal lasts.
pub(crate) fn refusal_failure(
    observed: &Observed,
    all_created: bool,
    clock: &mut DeadlineClock,
) -> Option<AttemptFailure> {
    // replicas that train without the refused instance do not block resources
    let blocks_resources =
        !all_created && !observed.enough_replicas_train() && !observed.has_scheduled_enough_replicas();
    let refusal = observed.refusal.as_ref().filter(|_| blocks_resources)?;
    observed.current_instances().find(|instance| instance.is_alive())?;
    let message = format!("was not created: {}", refusal.message);
    clock.has_passed_or_wakes_at(refusal.since.plus_seconds(CREATION_REFUSED_GRACE_SECONDS)).then(|| {
        let rank = observed.missing_stages().next();
        AttemptFailure::without_exit(&observed.state, FailureReason::Unschedulable, rank, message, clock.now)
    })
}

/// Returns the failure for a timeout: scheduling, start-up or a step took too long.
pub(crate) fn timeout_failure(
    observed: &Observed,
    all_created: bool,
    clock: &mut DeadlineClock,
) -> Option<AttemptFailure> {
    let (state, restart) = (&observed.state, &observed.policy.restart);
    let latest = |wanted: fn(&StageInstance) -> bool| {
        observed.current_instances().filter(move |instance| wanted(instance)).max_by_key(|instance| instance.since)
    };
    // A scheduling gate shows that the job waits in a queue. The queue determines the duration of the wait, and a new
    // attempt would lose the job's position.
    if !observed.enough_replicas_train()
        && latest(|instance| instance.state == InstanceState::SchedulingGated).is_some()
    {
        return None;
    }
    // each step that the other replicas finish restarts the timeout of a lost replica
    let last_step_or = |since: UnixMillis| observed.progress.last_step_at.unwrap_or(since).max(since);
    // An instance that could not be created, for example because of a quota, counts as pending since the last time at
    // which a live instance changed its state.
    let pending = latest(|instance| instance.state == InstanceState::Pending);
    let unscheduled = pending.or_else(|| latest(StageInstance::is_alive).filter(|_| !all_created));
    if let Some(instance) = unscheduled.filter(|_| !observed.has_scheduled_enough_replicas()) {
        let timeout = observed.policy.scheduling_timeout_seconds;
        return clock.has_passed_or_wakes_at(last_step_or(instance.since).plus_seconds(timeout)).then(|| {
            let message = format!("was not scheduled within {timeout} s");
            let rank = pending.map(|instance| instance.rank).or_else(|| observed.missing_stages().next());
            AttemptFailure::without_exit(state, FailureReason::Unschedulable, rank, message, clock.now)
        });
    }
    if let Some(instance) = latest(|instance| instance.state == InstanceState::Starting) {
        if observed.progress.is_unreachable {
            return None;
        }
        let timeout = restart.startup_timeout_seconds;
        let since = observed.progress.last_preparation_at.unwrap_or(instance.since).max(last_step_or(instance.since));
        return clock.has_passed_or_wakes_at(since.plus_seconds(timeout.into())).then(|| {
            let message = format!("rendezvous was not complete within {timeout} s of the last progress");
            AttemptFailure::without_exit(state, FailureReason::StartupTimeout, Some(instance.rank), message, clock.now)
        });
    }
    let ready = latest(|instance| instance.state == InstanceState::Ready)?;
    // After a stage is done, the other stages must exit within the stall timeout. Before that, a stall is detected only
    // if the time of the last finished step is known.
    let done = latest(|instance| !instance.is_alive());
    let since = done.map(|instance| instance.since).or(observed.progress.last_step_at)?.max(ready.since);
    let timeout = restart.stall_timeout_seconds;
    clock.has_passed_or_wakes_at(since.plus_seconds(timeout.into())).then(|| {
        let message = match done {
            Some(_) => format!("did not finish within {timeout} s after another stage had finished"),
            None => format!("no step was finished within {timeout} s"),
        };
        AttemptFailure::without_exit(state, FailureReason::Stalled, done.map(|_| ready.rank), message, clock.now)
    })
}
