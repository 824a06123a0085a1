//! Transitions of pods, their nodes and the volume.

use super::cluster_state::{ClusterState, ModelPod, ModelProcess, NOW, Name, Write};
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
    /// A process has lost its group, and waits for the next.
    Survive(Name),
    /// An attempt's group forms.
    Form(u64),
    /// A group commits its next checkpoint.
    Commit(u64),
    /// A process exits, because of the state of its group.
    End(Name, i32),
    /// A spare takes the place of a lost stage, which its group gives it.
    TakePlace(Name, u32),
    /// The API shows that.
    ShowTakeover(Name),
    /// A node notices that a process has ended.
    Notice(Name),
    /// A terminating pod that has exited is removed by its node.
    Remove(Name),
}

/// The enabled transitions, and whether each is immediate: a process on a partitioned node may take any time.
pub(crate) fn enabled_transitions(cluster: &ClusterState, disabled_guard: Option<Guard>) -> Vec<(PodTransition, bool)> {
    let mut enabled_transitions = Vec::new();
    let mut attempts: Vec<_> = cluster.pods.iter().map(|pod| pod.name.attempt).collect();
    attempts.dedup();
    for attempt in attempts {
        let mut stages = cluster.of(attempt).filter(|pod| pod.place().is_some());
        let is_immediate = stages.all(|pod| pod.is_reachable() && pod.deleted_at.is_none());
        if let Some(members) = members(cluster, attempt, ModelProcess::Starting)
            && members[0].fenced
            && cluster.volume.holder == Some(members[0].name)
        {
            enabled_transitions.push((PodTransition::Form(attempt), is_immediate));
        }
        if let Some(members) = members(cluster, attempt, ModelProcess::Ready)
            && holds(cluster, members[0].name, disabled_guard)
            && cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP
        {
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
        // one that has lost a group is replaced if another stage 0 has taken a fence since
        let may_take = !pod.is_survivor || cluster.volume.holder == Some(name);
        if pod.process == ModelProcess::Starting && pod.is_of(0) && !pod.fenced && may_take {
            enabled_transitions.push((PodTransition::TakeFence(name), is_immediate));
        }
        if let Some(code) = end(cluster, pod, disabled_guard) {
            enabled_transitions.push((PodTransition::End(name, code), is_immediate));
        }
        if cluster.replaces_stages && has_lost_its_group(cluster, pod) {
            enabled_transitions.push((PodTransition::Survive(name), is_immediate));
        }
        for rank in lost_places(cluster, pod) {
            enabled_transitions.push((PodTransition::TakePlace(name, rank), false));
        }
        if pod.takes.is_some() && !pod.takeover_shows && pod.is_reachable() && is_current(cluster, pod) {
            enabled_transitions.push((PodTransition::ShowTakeover(name), false));
        }
        if gives_up(cluster, pod) {
            enabled_transitions.push((PodTransition::End(name, 75), false));
        }
        if pod.unnoticed.is_some() {
            enabled_transitions.push((PodTransition::Notice(name), false));
        }
        // how a spare exits that was asked to decides nothing
        let stopped = matches!(pod.process, ModelProcess::Pending | ModelProcess::Ended(_)) || pod.place().is_none();
        if pod.is_reachable() && pod.deleted_at.is_some() && stopped {
            enabled_transitions.push((PodTransition::Remove(name), false));
        }
    }
    enabled_transitions
}

/// The living process of each stage of an attempt, if all are in the same state: of two of one stage the newer one, since a
/// group takes no older one in.
fn members(cluster: &ClusterState, attempt: u64, process: ModelProcess) -> Option<Vec<&ModelPod>> {
    let stages = cluster.of(attempt).next()?.stages;
    let member = |rank| newest(cluster, attempt, rank).filter(|pod| pod.process == process);
    (0..stages).map(member).collect()
}

/// The living process of a stage with the highest incarnation.
fn newest(cluster: &ClusterState, attempt: u64, rank: u32) -> Option<&ModelPod> {
    let living = cluster.of(attempt).filter(|pod| pod.is_of(rank) && pod.is_alive());
    living.max_by_key(|pod| pod.place())
}

fn holds(cluster: &ClusterState, stage_0: Name, disabled_guard: Option<Guard>) -> bool {
    cluster.volume.holder == Some(stage_0) || disabled_guard == Some(Guard::Fence)
}

/// Whether a process was in a group of which another stage is gone, or has started anew.
fn has_lost_its_group(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let is_whole = |rank| newest(cluster, pod.name.attempt, rank).is_some_and(|pod| pod.process == ModelProcess::Ready);
    let done = cluster.volume.checkpoint >= FINAL_CHECKPOINT_STEP;
    pod.place().is_some() && pod.process == ModelProcess::Ready && !done && !(0..pod.stages).all(is_whole)
}

fn is_current(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let recorded = &cluster.job.recorded;
    recorded.attempt.number == pod.name.attempt && recorded.outcome().is_none()
}

/// Whether a spare stands by.
pub(crate) fn stands_by(pod: &ModelPod) -> bool {
    pod.place().is_none() && pod.process == ModelProcess::Ready && pod.deleted_at.is_none()
}

/// Whether the stage 0 of an attempt's group lives, and another stage that might lose it.
pub(crate) fn leads_a_group(cluster: &ClusterState, attempt: u64) -> bool {
    let Some((_, incarnations)) = cluster.group.as_ref().filter(|(of, _)| *of == attempt) else { return false };
    let is_member = |pod: &&ModelPod| {
        pod.process == ModelProcess::Ready
            && pod.place().is_some_and(|(rank, incarnation)| incarnations[rank as usize] == incarnation)
    };
    let members = || cluster.of(attempt).filter(is_member);
    members().any(|pod| pod.is_of(0)) && members().any(|pod| !pod.is_of(0))
}

/// The stages whose places a spare may be given: members of its group that have ended, as the others notice, while no other
/// has joined in their place.
fn lost_places(cluster: &ClusterState, pod: &ModelPod) -> Vec<u32> {
    let attempt = pod.name.attempt;
    let group = cluster.group.as_ref().filter(|(of, _)| *of == attempt && stands_by(pod));
    let Some((_, incarnations)) = group.filter(|_| cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP) else {
        return Vec::new();
    };
    let runs = |pod: &&ModelPod| matches!(pod.process, ModelProcess::Starting | ModelProcess::Ready);
    let running = |rank| cluster.of(attempt).filter(runs).filter(move |pod| pod.is_of(rank));
    let was_member =
        |pod: &ModelPod| pod.place().is_some_and(|(rank, incarnation)| incarnations[rank as usize] == incarnation);
    let survives = |rank| running(rank).any(was_member);
    let stages = 0..pod.stages;
    let somebody_gives = stages.clone().any(survives);
    stages.filter(|rank| somebody_gives && running(*rank).next().is_none()).collect()
}

/// Whether a process that waits for the next group may give up: another stage is not there.
fn gives_up(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let is_missing = |rank| newest(cluster, pod.name.attempt, rank).is_none();
    pod.process == ModelProcess::Starting && pod.is_survivor && (0..pod.stages).any(is_missing)
}

/// The code with which a process is about to exit, if it is.
fn end(cluster: &ClusterState, pod: &ModelPod, disabled_guard: Option<Guard>) -> Option<i32> {
    let formed = match pod.process {
        ModelProcess::Starting => false,
        ModelProcess::Ready => true,
        ModelProcess::Pending | ModelProcess::Ended(_) => return None,
    };
    let terminating = pod.deleted_at.is_some() && pod.is_reachable();
    let attempt = pod.name.attempt;
    let (rank, _) = pod.place()?;
    let peers = cluster.of(attempt).filter(|peer| peer.place().is_some() && !peer.is_of(rank));
    let ends = peers.clone().filter_map(|peer| match peer.process {
        ModelProcess::Ended(code) => Some(code),
        _ => None,
    });
    let stage_0 = newest(cluster, attempt, 0).map(|pod| pod.name);
    let holds_fence = stage_0.is_some_and(|stage_0| holds(cluster, stage_0, disabled_guard));
    let fenced_off = formed && !holds(cluster, pod.name, disabled_guard) && rank == 0;
    let others_done = ends.clone().any(|code| code == 0);
    let done = formed && cluster.volume.checkpoint >= FINAL_CHECKPOINT_STEP && (holds_fence || others_done);
    let drained_by_peer = formed && ends.clone().any(|code| code == 143);
    let was_replaced = newest(cluster, attempt, rank).is_some_and(|newer| newer.name != pod.name);
    // of a newer attempt, or of another stage 0
    let superseded = pod.is_survivor
        && cluster.volume.holder.is_some_and(|holder| holder.attempt > attempt || rank == 0 && holder != pod.name);
    let missing = (0..pod.stages).any(|of| of != rank && !peers.clone().any(|peer| peer.is_of(of)));
    let lost = !cluster.replaces_stages && (ends.clone().any(|code| code != 0) || formed && missing);
    match () {
        () if done => Some(0),
        () if was_replaced => Some(1),
        () if fenced_off => Some(if cluster.replaces_stages { 75 } else { 1 }),
        () if superseded => Some(75),
        () if drained_by_peer => Some(143),
        () if lost => Some(75),
        () if terminating => Some(143),
        () => None,
    }
}

/// Applies a transition.
pub(crate) fn apply(cluster: &mut ClusterState, transition: PodTransition) {
    match transition {
        PodTransition::Start(name) => cluster.change(name, |pod| {
            // that a spare is not ready yet is as if it were pending
            pod.enter(if pod.place().is_some() { ModelProcess::Starting } else { ModelProcess::Ready });
        }),
        PodTransition::TakeFence(name) => {
            cluster.volume.holder = Some(name);
            cluster.change(name, |pod| pod.fenced = true);
        }
        PodTransition::Survive(name) => cluster.change(name, |pod| {
            pod.enter(ModelProcess::Starting);
            (pod.fenced, pod.is_survivor) = (false, true);
        }),
        PodTransition::Form(attempt) => {
            let members = members(cluster, attempt, ModelProcess::Starting).unwrap_or_default();
            let names: Vec<_> = members.iter().map(|pod| pod.name).collect();
            if cluster.spares > 0 {
                let incarnations = members.iter().filter_map(|pod| Some(pod.place()?.1)).collect();
                cluster.group = Some((attempt, incarnations));
            }
            for name in names {
                cluster.change(name, |pod| {
                    pod.enter(ModelProcess::Ready);
                    (pod.fenced, pod.is_survivor) = (false, false);
                });
            }
        }
        PodTransition::Commit(attempt) => {
            let stage_0 = newest(cluster, attempt, 0).map(|pod| pod.name);
            if cluster.volume.holder.is_some() && cluster.volume.holder != stage_0 {
                cluster.report_violation(BrokenInvariant::OnlyFenceHolderCommits);
            }
            cluster.volume.checkpoint += 1;
            cluster.operator.has_unobserved_change = true;
        }
        PodTransition::End(name, code) => cluster.change(name, |pod| pod.enter(ModelProcess::Ended(code))),
        PodTransition::TakePlace(name, rank) => take_place(cluster, name, rank),
        PodTransition::ShowTakeover(name) => cluster.change(name, |pod| pod.takeover_shows = true),
        PodTransition::Notice(name) => cluster.change(name, |pod| (pod.unnoticed, pod.at) = (None, NOW)),
        PodTransition::Remove(name) => {
            cluster.pods.retain(|pod| pod.name != name);
            // Deletions carry the UID.
            cluster.operator.plan.retain(|write| *write != Write::Delete(name));
            cluster.operator.job_is_current |= cluster.operator.plan.is_empty();
            cluster.operator.has_unobserved_change = true;
        }
    }
}

/// A spare becomes a stage, as the incarnation after the one that its group knew.
pub(crate) fn take_place(cluster: &mut ClusterState, name: Name, rank: u32) {
    let Some((_, incarnations)) = &mut cluster.group else { return };
    let incarnation = &mut incarnations[rank as usize];
    *incarnation += 1;
    let takes = Some((rank, *incarnation));
    cluster.change(name, |pod| {
        pod.takes = takes;
        pod.enter(ModelProcess::Starting);
    });
}
