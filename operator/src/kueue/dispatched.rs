//! Decides the next writes to the Workload of a job that MultiKueue runs in another cluster. The operator creates and
//! updates the Workload. Kueue finishes the Workload when the copy of the job in the other cluster has ended.

use std::sync::Arc;

use super::actions::{WorkloadAction, pods_ready, release, set_priority};
use crate::build::JobReference;
use crate::build::kueue::{Demand, Workload, next_workload_number};

/// The state of the job's copy in the other cluster, according to the status that Kueue copies into this cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RemoteJobState {
    /// Whether the user has suspended the job.
    pub(crate) is_suspended: bool,
    /// Whether the job is complete or has failed.
    pub(crate) has_ended: bool,
    /// Whether the copy has no running attempt (a run of all stages). An evicted copy has a limited time to save. After
    /// this time, the field is true even if the copy has not reported its stop, because the other cluster may be lost.
    pub(crate) has_stopped: bool,
    /// Whether the copy trains.
    pub(crate) is_running: bool,
}

/// Returns the next writes. `demand` is `None` for a job without a queue. `workloads` are in the order of their
/// creation.
pub(crate) fn dispatched_actions(
    job: &JobReference,
    demand: Option<&Demand>,
    workloads: &[Arc<Workload>],
    situation: RemoteJobState,
) -> Vec<WorkloadAction> {
    let unfinished: Vec<&Arc<Workload>> = workloads.iter().filter(|workload| workload.is_unfinished()).collect();
    // Kueue copies the final status of the job before it finishes the Workload, but the operator may observe the
    // finished Workload first
    let is_over = situation.has_ended || workloads.iter().any(|workload| workload.is_finished());
    if is_over {
        return Vec::new();
    }
    let wanted = demand.filter(|demand| !situation.is_suspended && demand.problem().is_none());
    let mut actions = Vec::new();
    let mut has_kept = false;
    for workload in &unfinished {
        let fitting = wanted.filter(|demand| {
            !has_kept && demand.matches(workload) && (demand.has_counts(workload) || !workload.has_reservation())
        });
        let Some(demand) = fitting else {
            actions.extend(retire(workload, situation));
            continue;
        };
        has_kept = true;
        if workload.is_evicted() && workload.has_reservation() {
            actions.extend(situation.has_stopped.then(|| release(workload)));
        } else if !demand.has_counts(workload) {
            actions.push(WorkloadAction::SetCounts(Arc::clone(workload)));
        } else {
            actions.extend(set_priority(demand, workload));
            actions.extend(pods_ready(workload, workload.is_admitted() && situation.is_running));
        }
    }
    if unfinished.is_empty() && wanted.is_some() {
        let number = next_workload_number(job, workloads);
        actions.push(WorkloadAction::Create { number, replaced: None });
    }
    actions
}

/// Removes a Workload that the job does not need. If the Workload still had its reservation, its deletion would kill
/// the copy of the job. The operator therefore evicts such a Workload first, so that the copy saves and stops.
fn retire(workload: &Arc<Workload>, situation: RemoteJobState) -> Option<WorkloadAction> {
    if situation.has_stopped || !workload.has_reservation() {
        return Some(WorkloadAction::Delete(Arc::clone(workload)));
    }
    (!workload.is_evicted()).then(|| WorkloadAction::Evict(Arc::clone(workload)))
}
