//! Writes to the API server, and the invariants of each write.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::guards::Guard;
use super::max_restarts;
use crate::model::cluster_state::{ClusterState, ModelQueue, NOW, Name, Record, StaleCache, Write};
use crate::model::model_pod::{ModelPod, ModelProcess};
use crate::model::properties::BrokenInvariant;

/// Makes the next write of the plan. With `unseen`, the watch's cache keeps the version that the write replaces.
pub(crate) fn write(cluster: &mut ClusterState, unseen: bool, disabled_guard: Option<Guard>) {
    let Some(next) = cluster.operator.plan.pop() else { return };
    match next {
        Write::Record(_) if !cluster.operator.job_is_current && disabled_guard != Some(Guard::CompareAndSwap) => {
            cluster.operator.plan.clear();
            cluster.operator.has_unobserved_change = true;
        }
        Write::Record(record) => {
            if record.state != cluster.job.recorded && !matches!(cluster.stale_cache, Some(StaleCache::Pods(_))) {
                cluster.stale_cache = unseen.then(|| StaleCache::Job(Box::new(cluster.job.clone())));
            }
            write_record(cluster, *record);
        }
        Write::Create { name, mesh } => create(cluster, name, mesh),
        Write::Delete(name) => delete(cluster, name),
        Write::Release => {
            if let ModelQueue::Evicted(id) = cluster.queue {
                cluster.queue = ModelQueue::Waiting(id);
            }
        }
    }
    if cluster.operator.plan.is_empty() {
        cluster.operator.job_is_current = true;
    }
}

fn write_record(cluster: &mut ClusterState, record: Record) {
    let Record { state, starts_attempt, resets_budget, returns_restart_to_budget, counted, is_done } = record;
    let max_restarts = max_restarts(cluster.spares);
    let (before, history) = (&cluster.job.recorded, &mut cluster.history);
    if state == *before {
        return;
    }
    let number = state.attempt.number;
    let mut broken = None;
    if starts_attempt && is_done {
        broken = Some(BrokenInvariant::NothingFollowsTheEnd);
    }
    if before.outcome().is_some() {
        broken = Some(BrokenInvariant::TerminalStateIsFinal);
    }
    let used = number <= history.highest || cluster.pods.iter().any(|pod| pod.name.attempt >= number);
    if number < before.attempt.number || starts_attempt && used {
        broken = broken.or(Some(BrokenInvariant::AttemptNumbersAreUnique));
    }
    history.highest = history.highest.max(number);
    if matches!(state.attempt_phase, AttemptPhase::Running { all_created: true, .. }) {
        let name = |rank| Name { attempt: number, rank, incarnation: state.incarnation(rank) };
        history.created = (0..state.attempt.instances()).map(name).collect();
    }
    if resets_budget {
        history.counted = 0;
    }
    history.counted = history.counted.saturating_sub(returns_restart_to_budget.into()) + u32::from(counted);
    if history.counted > max_restarts {
        broken = broken.or(Some(BrokenInvariant::BudgetIsRespected));
    }
    let given_up = matches!(state.outcome(), Some(JobOutcome::Failed(_)));
    let counted_since_checkpoint = state.outcome() == Some(&JobOutcome::Failed(JobFailureReason::BudgetExhausted));
    if given_up && !(counted_since_checkpoint && history.counted == max_restarts) {
        broken = broken.or(Some(BrokenInvariant::NoEarlyFailure));
    }
    cluster.job.recorded = state;
    cluster.operator.has_unobserved_change = true;
    broken.into_iter().for_each(|invariant| cluster.report_violation(invariant));
}

/// Creates a pod, unless a pod of this name exists.
fn create(cluster: &mut ClusterState, name: Name, mesh: Mesh) {
    if cluster.pod(name).is_some() {
        return;
    }
    if name.attempt > cluster.history.highest.max(cluster.history.highest_before_loss) {
        cluster.report_violation(BrokenInvariant::OnlyRecordedAttemptsAreCreated);
    }
    if cluster.history.created.contains(&name) || name.attempt < cluster.history.highest {
        cluster.report_violation(BrokenInvariant::PodsAreCreatedOnce);
    }
    let pod = ModelPod {
        name,
        mesh,
        process: ModelProcess::Pending,
        promoted_to: None,
        promotion_shows: false,
        at: NOW,
        fenced: false,
        is_survivor: false,
        deleted_at: None,
        partitioned: None,
        unnoticed: None,
    };
    cluster.pods.push(pod);
    cluster.pods.sort_unstable_by_key(|pod| pod.name);
    cluster.operator.has_unobserved_change = true;
}

fn delete(cluster: &mut ClusterState, name: Name) {
    let recorded = &cluster.job.recorded;
    let place = cluster.pod(name).and_then(ModelPod::place);
    let is_recorded = place.is_some_and(|(rank, incarnation)| recorded.incarnation(rank) == incarnation);
    let is_current = recorded.attempt.number == name.attempt && is_recorded;
    if matches!(recorded.attempt_phase, AttemptPhase::Running { .. }) && is_current {
        cluster.report_violation(BrokenInvariant::CurrentPodsAreKept);
    }
    if cluster.pod(name).is_some() {
        cluster.change(name, |pod| {
            pod.deleted_at.get_or_insert(NOW);
        });
    }
}
