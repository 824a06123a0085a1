//! Replacement of lost stages: the lost stages start again, and the other stages stay and form a new group with them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::instance::InstanceState;
use crate::observed::Observed;
use crate::state::{AttemptPhase, JobState};
use crate::time::UnixMillis;
use crate::{AttemptFailure, cause_order};

/// Returns the stages whose replacement is enough after `failure`. The set is empty if all stages must start again. All
/// stages must start again if no live instance would remain, if another stage terminates or exited without failing by
/// itself, if the failure needs a new attempt, or if a lost stage was replaced already and no step has finished since.
pub(crate) fn replaceable_stages(observed: &Observed, failure: &AttemptFailure, all_created: bool) -> BTreeSet<u32> {
    let state = &observed.state;
    // all instances were created, or all existed before the last replacement, or enough replicas of an elastic job run
    let was_whole = all_created || !state.incarnations.is_empty() || observed.has_scheduled_enough_replicas();
    if !observed.policy.replaces_stages || !was_whole || failure.needs_new_attempt() {
        return BTreeSet::new();
    }
    let mut lost: BTreeSet<u32> = observed.deleted_stages(all_created).collect();
    let mut any_instance_remains = false;
    let trains = observed.enough_replicas_train();
    let reported = observed.lost_instance().map(|(instance, _)| instance);
    for instance in observed.current_instances() {
        match &instance.state {
            _ if Some(instance) == reported && failure.rank == Some(instance.rank) => {
                lost.insert(instance.rank);
            }
            InstanceState::Exited(exit) if cause_order::failed_by_itself(exit) => drop(lost.insert(instance.rank)),
            // enough replicas train without this instance, so its exit interrupted no training
            InstanceState::Exited(_) | InstanceState::Terminating if trains && failure.rank == Some(instance.rank) => {
                lost.insert(instance.rank);
            }
            InstanceState::Exited(_) | InstanceState::Terminating => return BTreeSet::new(),
            InstanceState::Starting | InstanceState::Ready => any_instance_remains = true,
            InstanceState::SchedulingGated | InstanceState::Pending => {}
        }
    }
    let is_lost = failure.rank.is_some_and(|rank| lost.contains(&rank));
    let again = !lost.is_disjoint(&state.replaced_without_progress);
    if is_lost && any_instance_remains && !again { lost } else { BTreeSet::new() }
}

/// Whether the other stages still wait for a replacement that starts after `delay`, or train without the lost stage.
pub(crate) fn is_waited_for(observed: &Observed, delay: Duration) -> bool {
    let timeout = Duration::from_secs(observed.policy.restart.reform_timeout_seconds.into());
    delay < timeout || observed.enough_replicas_train()
}

/// Returns the state in which the `lost` stages start again. The new incarnation of each lost stage is `increment`
/// higher than its last one.
pub(crate) fn replaced(mut state: JobState, lost: BTreeSet<u32>, increment: u32, not_before: UnixMillis) -> JobState {
    for &rank in &lost {
        let incarnation = state.incarnations.entry(rank).or_insert(0);
        *incarnation = incarnation.saturating_add(increment);
    }
    state.ranks_to_create.extend(&lost);
    state.replaced_without_progress.extend(lost);
    state.budget.replaced = state.budget.replaced.saturating_add(1);
    state.attempt_phase = AttemptPhase::Running { not_before, all_created: false };
    state
}
