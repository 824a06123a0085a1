//! The actions of a state, recomputed from every observation, so that a crash of the caller loses none.

use std::collections::BTreeMap;

use crate::observed::{Observed, StageInstance};
use crate::report;
use crate::state::{AttemptPhase, JobOutcome};
use crate::time::DeadlineClock;

/// Grace period of a failed attempt's instances: there is nothing to save, and the group terminates by itself.
const FAILED_ATTEMPT_GRACE_SECONDS: u64 = 10;

/// An action on an attempt. Idempotent: it may be requested again until its effect is observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttemptAction {
    /// Create the attempt's missing instances.
    StartAttempt {
        /// The attempt.
        number: u64,
        /// Its number of stages.
        stages: u32,
    },
    /// Create the missing ones of these instances of an attempt.
    ReplaceStages {
        /// The attempt.
        attempt: u64,
        /// The stages and their incarnations.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Remove the instances of an attempt that were replaced. One that still exists, because its node or its process does not
    /// answer, is killed. Afterwards they are observed as Terminating or not at all.
    RemoveReplaced {
        /// The attempt.
        attempt: u64,
        /// The incarnation of each stage that is kept; of other stages all are.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Terminate an attempt's instances (SIGTERM, or pod deletion) and remove exited ones. Afterwards they are observed as
    /// Terminating or not at all.
    DeleteInstances {
        /// The attempt.
        attempt: u64,
        /// Grace period, in seconds.
        grace_seconds: u64,
    },
    /// Kill an attempt's instances whose grace period is over (SIGKILL; for pods the kubelet does it).
    KillInstances {
        /// The attempt.
        attempt: u64,
    },
}

/// The actions of the observed state.
pub(crate) fn actions_for(observed: &Observed, clock: &mut DeadlineClock) -> Vec<AttemptAction> {
    let mut actions = Vec::new();
    let state = &observed.state;
    let number = state.attempt.number;
    let mut attempts: Vec<_> = observed.instances.iter().map(|instance| instance.attempt).collect();
    attempts.sort_unstable();
    attempts.dedup();
    for attempt in attempts {
        if must_be_deleted(observed, attempt) {
            let grace_seconds = grace_seconds(observed, attempt);
            let delete_exited = matches!(state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Running { .. });
            let instances = || observed.instances.iter().filter(|instance| instance.attempt == attempt);
            // Exited instances are kept during a drain, for their exit codes, and after the job's end, for their logs.
            if instances().any(|instance| !instance.is_terminating() && (instance.is_alive() || delete_exited)) {
                actions.push(AttemptAction::DeleteInstances { attempt, grace_seconds });
            }
            let terminating = || instances().filter(|instance| instance.is_terminating());
            if terminating().any(|instance| clock.now >= instance.since.plus_seconds(grace_seconds)) {
                actions.push(AttemptAction::KillInstances { attempt });
            }
            for instance in terminating() {
                clock.has_passed(instance.since.plus_seconds(grace_seconds));
            }
        }
    }
    let exit_is_awaited =
        observed.replaced_instances().any(|instance| report::exit_is_awaited(observed, instance, clock));
    if matches!(state.attempt_phase, AttemptPhase::Running { .. })
        && observed.replaced_instances().any(|instance| !instance.is_terminating())
        && !exit_is_awaited
    {
        actions.push(AttemptAction::RemoveReplaced { attempt: number, incarnations: state.incarnations.clone() });
    }
    if let AttemptPhase::Running { not_before, all_created: false } = state.attempt_phase
        && !older_instances_remain(observed, clock)
        && clock.has_passed(not_before)
    {
        let incarnations: BTreeMap<_, _> =
            state.starting.iter().map(|stage| (*stage, state.incarnation(*stage))).collect();
        actions.push(match incarnations.is_empty() {
            true => AttemptAction::StartAttempt { number, stages: state.attempt.stages },
            false => AttemptAction::ReplaceStages { attempt: number, incarnations },
        });
    }
    actions
}

/// Whether an attempt's instances must be deleted.
fn must_be_deleted(observed: &Observed, attempt: u64) -> bool {
    match observed.state.attempt_phase {
        AttemptPhase::Running { .. } => attempt != observed.state.attempt.number,
        // A job is complete when all instances have exited; their pods are kept for their logs.
        AttemptPhase::Finished(JobOutcome::Complete) => attempt != observed.state.attempt.number,
        AttemptPhase::Idle | AttemptPhase::Draining | AttemptPhase::Finished(JobOutcome::Failed(_)) => true,
    }
}

/// Grace period of an attempt's instances, in seconds.
fn grace_seconds(observed: &Observed, attempt: u64) -> u64 {
    let failed = attempt != observed.state.attempt.number;
    if failed { FAILED_ATTEMPT_GRACE_SECONDS.min(observed.policy.grace_seconds) } else { observed.policy.grace_seconds }
}

/// Whether an instance of any attempt remains, while draining.
pub(crate) fn instances_remain(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    remain_within_timeout(observed, &|_| true, observed.policy.grace_seconds, clock)
}

/// Whether an instance of an older attempt remains that a new one must wait for.
fn older_instances_remain(observed: &Observed, clock: &mut DeadlineClock) -> bool {
    let number = observed.state.attempt.number;
    remain_within_timeout(observed, &|instance| instance.attempt != number, 0, clock)
}

/// A terminating instance is waited for during its grace period plus `terminationTimeoutSeconds`. After that its node is
/// considered dead; if the process still runs, the volume's fence keeps it from committing.
fn remain_within_timeout(
    observed: &Observed,
    predicate: &dyn Fn(&StageInstance) -> bool,
    grace_seconds: u64,
    clock: &mut DeadlineClock,
) -> bool {
    let timeout = grace_seconds.saturating_add(observed.policy.restart.termination_timeout_seconds.into());
    let mut remain = false;
    for instance in observed.instances.iter().filter(|instance| instance.is_alive() && predicate(instance)) {
        remain |= !instance.is_terminating() || !clock.has_passed(instance.since.plus_seconds(timeout));
    }
    remain
}
