//! Tests of spares, which wait to replace a lost stage: their number, the consequences of a promotion, and the actions
//! that wait for a promotion.

mod count;
mod promotion;
mod replacement;

use stagecoach_lifecycle::*;

use super::{NOW, instance, ready, running};

/// Returns attempt 1 of three stages, with the spares `spares`.
fn with_spares(instances: Vec<StageInstance>, spares: Vec<SpareInstance>) -> Observed {
    let mut observed = running(instances);
    observed.policy.replaces_stages = true;
    observed.policy.spares = spares.len() as u32;
    Observed { spares, ..observed }
}

fn spare(number: u32, state: InstanceState, seconds: u64) -> SpareInstance {
    SpareInstance { number, attempt: 1, state, since: UnixMillis::from_seconds(seconds) }
}

/// Returns a spare that is ready for a promotion.
fn waits(number: u32) -> SpareInstance {
    spare(number, InstanceState::Ready, 900)
}

/// Returns spare 0 after its promotion to a stage.
fn promoted(rank: u32, incarnation: u32) -> StageInstance {
    StageInstance { incarnation, spare: Some(0), ..instance(rank, InstanceState::Starting, 999) }
}

/// Returns an attempt in which spare 0 was promoted to stage 1. `lost` is the earlier instance of that stage, if it
/// still exists.
fn taken(lost: Option<StageInstance>) -> Observed {
    let mut observed = with_spares(vec![ready(0), ready(2), promoted(1, 1)], vec![]);
    observed.policy.spares = 1;
    observed.instances.extend(lost);
    observed
}

fn start_spares(numbers: &[u32]) -> AttemptAction {
    AttemptAction::StartSpares { attempt: 1, numbers: numbers.iter().copied().collect() }
}

fn remove_spares(numbers: &[u32]) -> AttemptAction {
    AttemptAction::RemoveSpares { attempt: 1, numbers: numbers.iter().copied().collect() }
}

fn actions(observed: &Observed) -> Vec<AttemptAction> {
    decide(observed, NOW).actions
}

fn all_ready() -> Vec<StageInstance> {
    vec![ready(0), ready(1), ready(2)]
}
