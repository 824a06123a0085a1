//! Transitions of pods, their nodes and the volume.

use super::cluster_state::{ClusterState, ModelPod, ModelProcess, Name, Write};
use super::operator::Guard;
use super::properties::BrokenInvariant;

/// The checkpoint at which training is done.
pub(crate) const FINAL_CHECKPOINT_STEP: u64 = 1;

/// A transition of a pod or of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodTransition {
    /// A process starts.
    Start(Name),
    /// A stage 0 takes the next fence.
    TakeFence(Name),
    /// An attempt's group forms.
    Form(u64),
    /// A group commits its next checkpoint.
    Commit(u64),
    /// A process exits, because of the state of its group.
    End(Name, i32),
    /// A terminating pod that has exited is removed by its node.
    Remove(Name),
}

/// The enabled transitions, and whether each is immediate: a process on a partitioned node may take any time.
pub(crate) fn enabled_transitions(cluster: &ClusterState, disabled_guard: Option<Guard>) -> Vec<(PodTransition, bool)> {
    let mut enabled_transitions = Vec::new();
    let mut attempts: Vec<_> = cluster.pods.iter().map(|pod| pod.name.attempt).collect();
    attempts.dedup();
    for attempt in attempts {
        let is_immediate = cluster.of(attempt).all(|pod| pod.is_reachable() && pod.deleted_at.is_none());
        if all(cluster, attempt, ModelProcess::Starting) && cluster.of(attempt).any(|pod| pod.fenced) {
            enabled_transitions.push((PodTransition::Form(attempt), is_immediate));
        }
        let holds = cluster.volume.holder == attempt || disabled_guard == Some(Guard::Fence);
        if all(cluster, attempt, ModelProcess::Ready) && holds && cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP {
            enabled_transitions.push((PodTransition::Commit(attempt), is_immediate));
        }
    }
    for pod in &cluster.pods {
        let name = pod.name;
        // A terminating process has its grace period.
        let is_immediate = pod.is_reachable() && pod.deleted_at.is_none();
        if pod.process == ModelProcess::Pending && pod.is_reachable() && pod.deleted_at.is_none() {
            enabled_transitions.push((PodTransition::Start(name), true));
        }
        if pod.process == ModelProcess::Starting && name.stage == 0 && !pod.fenced {
            enabled_transitions.push((PodTransition::TakeFence(name), is_immediate));
        }
        if let Some(code) = end(cluster, pod, disabled_guard) {
            enabled_transitions.push((PodTransition::End(name, code), is_immediate));
        }
        let stopped = matches!(pod.process, ModelProcess::Pending | ModelProcess::Ended(_));
        if pod.is_reachable() && pod.deleted_at.is_some() && stopped {
            enabled_transitions.push((PodTransition::Remove(name), false));
        }
    }
    enabled_transitions
}

/// Whether all stages of an attempt exist and are in the same state.
fn all(cluster: &ClusterState, attempt: u64, process: ModelProcess) -> bool {
    let alike = cluster.of(attempt).filter(|pod| pod.process == process);
    alike.clone().count() > 0 && alike.clone().all(|pod| alike.clone().count() == pod.stages as usize)
}

/// The code with which a process is about to exit, if it is.
fn end(cluster: &ClusterState, pod: &ModelPod, disabled_guard: Option<Guard>) -> Option<i32> {
    let formed = match pod.process {
        ModelProcess::Starting => false,
        ModelProcess::Ready => true,
        ModelProcess::Pending | ModelProcess::Ended(_) => return None,
    };
    let attempt = pod.name.attempt;
    let peers = cluster.of(attempt).filter(|peer| peer.name != pod.name);
    let mut ends = peers.clone().filter_map(|peer| match peer.process {
        ModelProcess::Ended(code) => Some(code),
        _ => None,
    });
    let holds = cluster.volume.holder == attempt || disabled_guard == Some(Guard::Fence);
    let fenced_off = formed && !holds && pod.name.stage == 0;
    let done =
        formed && cluster.volume.checkpoint >= FINAL_CHECKPOINT_STEP && (holds || ends.clone().any(|code| code == 0));
    let drained_by_peer = formed && ends.clone().any(|code| code == 143);
    let lost = ends.any(|code| code != 0) || formed && peers.count() + 1 < pod.stages as usize;
    let terminating = pod.deleted_at.is_some() && pod.is_reachable();
    match () {
        () if done => Some(0),
        () if fenced_off => Some(1),
        () if drained_by_peer => Some(143),
        () if lost => Some(75),
        () if terminating => Some(143),
        () => None,
    }
}

/// Applies a transition.
pub(crate) fn apply(cluster: &mut ClusterState, transition: PodTransition) {
    match transition {
        PodTransition::Start(name) => cluster.change(name, |pod| pod.enter(ModelProcess::Starting)),
        PodTransition::TakeFence(name) => {
            cluster.volume.holder = name.attempt;
            cluster.change(name, |pod| pod.fenced = true);
        }
        PodTransition::Form(attempt) => {
            let names: Vec<_> = cluster.of(attempt).map(|pod| pod.name).collect();
            for name in names {
                cluster.change(name, |pod| pod.enter(ModelProcess::Ready));
            }
        }
        PodTransition::Commit(attempt) => {
            if attempt < cluster.volume.holder {
                cluster.report_violation(BrokenInvariant::OnlyFenceHolderCommits);
            }
            cluster.volume.checkpoint += 1;
            cluster.operator.has_unobserved_change = true;
        }
        PodTransition::End(name, code) => cluster.change(name, |pod| pod.enter(ModelProcess::Ended(code))),
        PodTransition::Remove(name) => {
            cluster.pods.retain(|pod| pod.name != name);
            // Deletions carry the UID.
            cluster.operator.plan.retain(|write| *write != Write::Delete(name));
            cluster.operator.job_is_current |= cluster.operator.plan.is_empty();
            cluster.operator.has_unobserved_change = true;
        }
    }
}
