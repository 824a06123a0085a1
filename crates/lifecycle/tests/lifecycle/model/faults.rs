//! Faults of the model: the enabled faults of a state, and the effects of the faults of processes, nodes, the user and
//! the job's status.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::cluster_state::{ClusterState, Faults, ModelOperator, ModelQueue, NOW, PastFacts, Write};
use super::model_pod::ModelProcess;
use super::operator::Guard;
use super::pods;
use super::steps::{ClusterModel, ModelTransition};
use super::time::canonical;

impl ClusterModel {
    pub(super) fn faults_of_the_operator(&self, cluster: &ClusterState, steps: &mut Vec<ModelTransition>) {
        let ModelOperator { plan, .. } = &cluster.operator;
        if !plan.is_empty() && cluster.remaining_faults.crashes > 0 {
            steps.push(ModelTransition::Crash);
        }
        if cluster.remaining_faults.stale_reads > 0 {
            if self.disabled_guard == Some(Guard::LiveList) {
                steps.push(ModelTransition::PodCacheStalls);
            } else if matches!(plan.last(), Some(Write::Record(_))) && cluster.operator.job_is_current {
                steps.push(ModelTransition::WriteWithStaleCache);
            }
        }
        if plan.is_empty() && cluster.stale_cache.is_some() {
            steps.push(ModelTransition::ObserveStale);
        }
    }

    pub(super) fn faults_of_others(&self, cluster: &ClusterState, steps: &mut Vec<ModelTransition>) {
        let Faults { failures, partitions, spec_changes, status_losses, evictions, .. } = cluster.remaining_faults;
        if cluster.job.recorded.outcome().is_some() {
            return;
        }
        for pod in cluster.pods.iter().filter(|pod| pod.is_alive()) {
            let runs = pod.process != ModelProcess::Pending;
            if pod.is_reachable() {
                if failures > 0 && runs {
                    let codes: &[i32] = if pod.place().is_some() { &[1, 75, 137] } else { &[1] };
                    steps.extend(codes.iter().map(|code| ModelTransition::Fail(pod.name, *code)));
                }
                if failures > 0 && pods::stands_by(pod) && pods::leads_a_group(cluster, pod.name.attempt) {
                    steps.push(ModelTransition::PromoteForLiving(pod.name));
                }
                if failures > 0 && runs && cluster.replaces_stages && pod.place().is_some() {
                    steps.push(ModelTransition::FailUnnoticed(pod.name));
                }
                if failures > 0 && pod.deleted_at.is_none() {
                    steps.push(ModelTransition::Evict(pod.name));
                }
                if partitions > 0 {
                    steps.push(ModelTransition::Partition(pod.name));
                }
            } else if runs {
                steps.push(ModelTransition::ExitUnobserved(pod.name));
            }
        }
        if spec_changes > 0 {
            let desired = cluster.job.desired;
            steps.push(ModelTransition::Change(Desired { suspend: !desired.suspend, ..desired }));
            steps.push(ModelTransition::Change(Desired { mesh: other_mesh(desired.mesh), ..desired }));
        }
        if evictions > 0 && matches!(cluster.queue, ModelQueue::Admitted(_)) {
            steps.push(ModelTransition::EvictJob);
        }
        if status_losses > 0 && cluster.job.recorded != JobState::default() {
            steps.push(ModelTransition::LoseStatus);
        }
    }
}

/// Returns the mesh after scaling: one stage becomes two, two stages become one, and the number of replicas becomes the
/// number of stages.
const fn other_mesh(mesh: Mesh) -> Mesh {
    if mesh.data_parallel > 1 { Mesh::pipeline(mesh.data_parallel) } else { Mesh::pipeline(3 - mesh.stages) }
}

/// Records a change of the job, so that a pending write of a plan for the older version fails.
fn job_changed(cluster: &mut ClusterState) {
    cluster.operator.job_is_current = cluster.operator.plan.is_empty();
    cluster.operator.has_unobserved_change = true;
}

/// Applies a fault of a process, a node, the user or the job's status.
pub(super) fn apply_fault(cluster: &mut ClusterState, fault: ModelTransition) {
    let faults = &mut cluster.remaining_faults;
    match fault {
        ModelTransition::Fail(name, code) => {
            faults.failures -= 1;
            cluster.change(name, |pod| pod.enter(ModelProcess::Ended(code)));
        }
        ModelTransition::FailUnnoticed(name) => {
            faults.failures -= 1;
            cluster.change(name, |pod| {
                pod.unnoticed = Some(pod.process);
                pod.process = ModelProcess::Ended(137);
            });
            cluster.operator.has_unobserved_change = true;
        }
        ModelTransition::PromoteForLiving(name) => {
            faults.failures -= 1;
            pods::promote(cluster, name, 0);
        }
        ModelTransition::Evict(name) => {
            faults.failures -= 1;
            cluster.change(name, |pod| pod.deleted_at = Some(NOW));
        }
        ModelTransition::Partition(name) => {
            faults.partitions -= 1;
            cluster.change(name, |pod| pod.partitioned = Some(pod.process));
        }
        ModelTransition::ExitUnobserved(name) => cluster.change(name, |pod| pod.enter(ModelProcess::Ended(137))),
        ModelTransition::Change(desired) => {
            faults.spec_changes -= 1;
            cluster.job.desired = desired;
            job_changed(cluster);
        }
        ModelTransition::EvictJob => {
            faults.evictions -= 1;
            if let ModelQueue::Admitted(id) = cluster.queue {
                cluster.queue = ModelQueue::Evicted(id);
            }
            cluster.operator.has_unobserved_change = true;
        }
        ModelTransition::LoseStatus => {
            faults.status_losses -= 1;
            cluster.job.recorded = canonical(JobState::default());
            cluster.history = PastFacts { highest_before_loss: cluster.history.highest, ..PastFacts::default() };
            job_changed(cluster);
        }
        other => unreachable!("{other:?}"),
    }
}
