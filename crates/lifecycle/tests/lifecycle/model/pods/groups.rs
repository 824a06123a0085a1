//! Groups: the processes that can form a group, lead it, train in it, or have lost it.

use std::ops::Range;

use stagecoach_api::contract::Mesh;

use super::FINAL_CHECKPOINT_STEP;
use crate::model::cluster_state::{ClusterState, ModelGroup, Name};
use crate::model::model_pod::{ModelPod, ModelProcess};
use crate::model::operator::Guard;

/// Whether a process may take the next fence. A process that has lost a group can't lead again if another stage 0 has
/// taken a fence since then.
pub(super) fn may_lead(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let Some((rank, _)) = pod.place() else { return false };
    let led_last = cluster.volume.holder == Some(pod.name);
    if !cluster.may_lack_replicas() {
        return rank == 0 && (!pod.is_survivor || led_last);
    }
    let leader = cluster.volume.leader.filter(|(attempt, _)| *attempt == pod.name.attempt).map_or(0, |(_, rank)| rank);
    (if pod.is_survivor { led_last } else { rank == leader }) || succeeds_leader(cluster, pod)
}

/// Whether the last group's leader has ended and this process leads next: stage 0 of the second replica, or a stage 0
/// that waits beside the only replica.
fn succeeds_leader(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let Some(group) = cluster.group().filter(|group| group.attempt == pod.name.attempt) else { return false };
    let is_leader = |other: &&ModelPod| other.is_of(group.leader) && group.has(other);
    // it is unknown whether a process on a lost node has ended
    let may_live = |other: &ModelPod| other.is_alive() || !other.is_reachable();
    let has_ended = !cluster.of(group.attempt).filter(is_leader).any(may_live);
    let is_next = match group.successor {
        Some(rank) => group.has(pod) && pod.is_of(rank),
        None => !group.has(pod) && pod.place().is_some_and(|(rank, _)| rank.is_multiple_of(pod.mesh.stages)),
    };
    has_ended && cluster.volume.holder.is_none() && is_next
}

/// Returns the living processes of these stages of an attempt, if all are in the state `process`. If a stage has two
/// processes, the newer one is used, because a group does not accept the older one.
fn members(cluster: &ClusterState, attempt: u64, ranks: Range<u32>, process: ModelProcess) -> Option<Vec<&ModelPod>> {
    ranks.map(|rank| newest(cluster, attempt, rank).filter(|pod| pod.process == process)).collect()
}

/// Returns the processes that can form a group, the leader first. The group needs all stages of all replicas. If
/// replicas may be missing, the group takes as many replicas as the waiting processes can form. Returns `None` if no
/// group can form.
pub(super) fn forming_members(
    cluster: &ClusterState,
    attempt: u64,
    disabled_guard: Option<Guard>,
) -> Option<Vec<&ModelPod>> {
    let mesh = cluster.of(attempt).next()?.mesh;
    if !cluster.may_lack_replicas() {
        return members(cluster, attempt, 0..mesh.ranks(), ModelProcess::Starting);
    }
    let mut pods_by_stage: Vec<_> = (0..mesh.stages).map(|stage| waiting(cluster, attempt, mesh, stage)).collect();
    let leads = |pod: &&ModelPod| pod.fenced && cluster.volume.holder == Some(pod.name);
    let leader = pods_by_stage[0].iter().position(leads)?;
    pods_by_stage[0].swap(0, leader);
    let count = pods_by_stage.iter().map(Vec::len).min()?;
    let needed = match disabled_guard {
        Some(Guard::EnoughReplicas) => 1,
        _ => needed_replicas(cluster, mesh),
    };
    let replica = |nth: usize| pods_by_stage.iter().map(move |pods| pods[nth]).collect::<Vec<_>>();
    (count >= needed).then(|| (0..count).flat_map(replica).collect())
}

pub(super) fn needed_replicas(cluster: &ClusterState, mesh: Mesh) -> usize {
    cluster.min_data_parallel.min(mesh.data_parallel) as usize
}

/// Returns the processes that wait for a group and have this stage, in any replica.
fn waiting(cluster: &ClusterState, attempt: u64, mesh: Mesh, stage: u32) -> Vec<&ModelPod> {
    let ranks = (0..mesh.data_parallel).map(|replica| replica * mesh.stages + stage);
    ranks
        .filter_map(|rank| newest(cluster, attempt, rank))
        .filter(|pod| pod.process == ModelProcess::Starting)
        .collect()
}

/// Whether a group is about to form: enough stages wait, and one of them leads or is about to lead.
fn is_forming(cluster: &ClusterState, attempt: u64, mesh: Mesh) -> bool {
    if !cluster.may_lack_replicas() {
        return forming_members(cluster, attempt, None).is_some();
    }
    let is_enough = |stage| waiting(cluster, attempt, mesh, stage).len() >= needed_replicas(cluster, mesh);
    let leads = |pod: &&ModelPod| may_lead(cluster, pod) || pod.fenced && cluster.volume.holder == Some(pod.name);
    (0..mesh.stages).all(is_enough) && waiting(cluster, attempt, mesh, 0).iter().any(leads)
}

/// Returns the stages of every group that trains, each group with its leader first.
pub(super) fn training_groups(cluster: &ClusterState) -> Vec<Vec<&ModelPod>> {
    if cluster.may_lack_replicas() {
        return cluster.groups.iter().filter_map(|group| training_members(cluster, group)).collect();
    }
    let mut attempts: Vec<_> = cluster.pods.iter().map(|pod| (pod.name.attempt, pod.mesh)).collect();
    attempts.dedup();
    let all = |(attempt, mesh): (u64, Mesh)| members(cluster, attempt, 0..mesh.ranks(), ModelProcess::Ready);
    attempts.into_iter().filter_map(all).collect()
}

/// Returns the stages of a group, if all are still in it.
fn training_members<'c>(cluster: &'c ClusterState, group: &ModelGroup) -> Option<Vec<&'c ModelPod>> {
    let is_member = |pod: &ModelPod| {
        pod.process == ModelProcess::Ready && cluster.group_of(pod).is_some_and(|of| std::ptr::eq(of, group))
    };
    let member = |rank: u32| cluster.of(group.attempt).find(|pod| pod.is_of(rank) && is_member(pod));
    let ranks = (0..).zip(&group.incarnations).filter_map(|(rank, incarnation)| incarnation.map(|_| rank));
    let mut ranks: Vec<u32> = ranks.collect();
    ranks.sort_by_key(|rank| *rank != group.leader);
    ranks.into_iter().map(member).collect()
}

/// Whether an attempt trains without some of its replicas.
fn trains_without_a_replica(cluster: &ClusterState, attempt: u64) -> bool {
    let lacks = |group: &&ModelGroup| group.attempt == attempt && group.lacks_a_replica();
    cluster.groups.iter().filter(lacks).any(|group| training_members(cluster, group).is_some())
}

/// Whether the operator can learn that an attempt trains without some of its replicas. A stage 0 on a lost node does
/// not answer.
pub(crate) fn is_heard_to_train_without(cluster: &ClusterState, attempt: u64) -> bool {
    let lacks = |group: &&ModelGroup| group.attempt == attempt && group.lacks_a_replica();
    let members = cluster.groups.iter().filter(lacks).filter_map(|group| training_members(cluster, group));
    members.into_iter().any(|members| are_prompt(cluster, &members))
}

/// Whether the processes that wait for this leader's next group form one more replica.
pub(super) fn replica_is_back(cluster: &ClusterState, leader: &ModelPod) -> bool {
    let (attempt, mesh) = (leader.name.attempt, leader.mesh);
    cluster.may_lack_replicas() && (0..mesh.stages).all(|stage| !waiting(cluster, attempt, mesh, stage).is_empty())
}

/// Whether a process is prompt, which means that it makes its transitions at once.
pub(super) fn is_prompt(pod: &ModelPod) -> bool {
    pod.is_reachable() && pod.deleted_at.is_none()
}

/// Whether all stages of a group are prompt. If no replica may be missing, replaced stages that still exist must be
/// prompt too.
pub(super) fn are_prompt(cluster: &ClusterState, members: &[&ModelPod]) -> bool {
    match cluster.may_lack_replicas() {
        true => members.iter().all(|pod| is_prompt(pod)),
        false => cluster.of(members[0].name.attempt).filter(|pod| pod.place().is_some()).all(is_prompt),
    }
}

/// Returns the living process of a stage with the highest incarnation.
fn newest(cluster: &ClusterState, attempt: u64, rank: u32) -> Option<&ModelPod> {
    let living = cluster.of(attempt).filter(|pod| pod.is_of(rank) && pod.is_alive());
    living.max_by_key(|pod| pod.place())
}

pub(super) fn holds(cluster: &ClusterState, stage_0: Name, disabled_guard: Option<Guard>) -> bool {
    cluster.volume.holder == Some(stage_0) || disabled_guard == Some(Guard::Fence)
}

/// Whether a process was in a group that has lost another stage, or in which another stage has started again.
pub(super) fn has_lost_its_group(cluster: &ClusterState, pod: &ModelPod, disabled_guard: Option<Guard>) -> bool {
    if pod.process != ModelProcess::Ready || pod.place().is_none() {
        return false;
    }
    let attempt = pod.name.attempt;
    if !cluster.may_lack_replicas() {
        let is_whole = members(cluster, attempt, 0..pod.mesh.ranks(), ModelProcess::Ready).is_some();
        return !is_whole && cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP;
    }
    let Some(group) = cluster.group_of(pod) else { return true };
    let has_newer = |(rank, known): (u32, &Option<u32>)| {
        let newest = newest(cluster, attempt, rank).and_then(ModelPod::place);
        known.is_some_and(|known| newest.is_some_and(|(_, incarnation)| incarnation > known))
    };
    let is_whole = training_members(cluster, group).is_some() && !(0..).zip(&group.incarnations).any(has_newer);
    !is_whole && !is_done(cluster, pod, disabled_guard)
}

/// Whether a process has learned that its group completed the training.
fn is_done(cluster: &ClusterState, pod: &ModelPod, disabled_guard: Option<Guard>) -> bool {
    let attempt = pod.name.attempt;
    let is_trained = cluster.volume.checkpoint >= FINAL_CHECKPOINT_STEP && pod.process == ModelProcess::Ready;
    let leader = match cluster.may_lack_replicas() {
        true => cluster.group_of(pod).and_then(|group| {
            let leads = |other: &&ModelPod| other.is_of(group.leader) && other.process == ModelProcess::Ready;
            cluster.of(attempt).find(|other| leads(other) && are_together(cluster, pod, other))
        }),
        false => newest(cluster, attempt, 0),
    };
    let holds_fence = leader.is_some_and(|leader| holds(cluster, leader.name, disabled_guard));
    is_trained && (holds_fence || peers(cluster, pod).any(|peer| peer.process == ModelProcess::Ended(0)))
}

/// Whether two processes are in the same group. If no replica may be missing, one group has all processes of an
/// attempt.
fn are_together(cluster: &ClusterState, pod: &ModelPod, other: &ModelPod) -> bool {
    let groups = [pod, other].map(|pod| cluster.group_of(pod).map(std::ptr::from_ref));
    !cluster.may_lack_replicas() || groups[0] == groups[1]
}

/// Returns the processes of the other stages in the group of `pod`, in any state.
fn peers<'c>(cluster: &'c ClusterState, pod: &ModelPod) -> impl Iterator<Item = &'c ModelPod> + Clone {
    let pod = pod.clone();
    cluster.of(pod.name.attempt).filter(move |peer| {
        let rank = pod.place().map(|(rank, _)| rank);
        peer.place().is_some() && rank.is_some_and(|rank| !peer.is_of(rank)) && are_together(cluster, &pod, peer)
    })
}

pub(super) fn is_current(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let recorded = &cluster.job.recorded;
    recorded.attempt.number == pod.name.attempt && recorded.outcome().is_none()
}

/// Whether a pod is a spare that is ready for a promotion.
pub(crate) fn stands_by(pod: &ModelPod) -> bool {
    pod.place().is_none() && pod.process == ModelProcess::Ready && pod.deleted_at.is_none()
}

/// Whether stage 0 of an attempt's group is alive, and another stage that could lose it is alive too.
pub(crate) fn leads_a_group(cluster: &ClusterState, attempt: u64) -> bool {
    let Some(group) = cluster.group() else { return false };
    let is_member = |pod: &&ModelPod| pod.process == ModelProcess::Ready && group.has(pod);
    let members = || cluster.of(attempt).filter(is_member);
    members().any(|pod| pod.is_of(0)) && members().any(|pod| !pod.is_of(0))
}

/// Returns the stages that a spare may replace. These are members of the spare's group that have ended, as the other
/// members detect, and that no other process has replaced.
pub(super) fn lost_places(cluster: &ClusterState, pod: &ModelPod) -> Vec<u32> {
    let attempt = pod.name.attempt;
    let group = cluster.group().filter(|group| group.attempt == attempt && stands_by(pod));
    let Some(group) = group.filter(|_| cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP) else {
        return Vec::new();
    };
    let runs = |pod: &&ModelPod| matches!(pod.process, ModelProcess::Starting | ModelProcess::Ready);
    let running = |rank| cluster.of(attempt).filter(runs).filter(move |pod| pod.is_of(rank));
    let survives = |rank| running(rank).any(|pod| group.has(pod));
    let stages = 0..pod.mesh.ranks();
    let a_member_remains = stages.clone().any(survives);
    stages.filter(|rank| a_member_remains && running(*rank).next().is_none()).collect()
}

/// Whether a process that waits for the next group may exit, because another stage is absent.
pub(super) fn gives_up(cluster: &ClusterState, pod: &ModelPod) -> bool {
    let attempt = pod.name.attempt;
    let is_missing = |rank| newest(cluster, attempt, rank).is_none();
    let waits = pod.process == ModelProcess::Starting && pod.is_survivor && (0..pod.mesh.ranks()).any(is_missing);
    waits && !is_forming(cluster, attempt, pod.mesh) && !trains_without_a_replica(cluster, attempt)
}

/// Returns the code with which a process is about to exit. `None` if the process is not about to exit.
pub(super) fn exit_code(cluster: &ClusterState, pod: &ModelPod, disabled_guard: Option<Guard>) -> Option<i32> {
    let formed = match pod.process {
        ModelProcess::Starting => false,
        ModelProcess::Ready => true,
        ModelProcess::Pending | ModelProcess::Ended(_) => return None,
    };
    let terminating = pod.deleted_at.is_some() && pod.is_reachable();
    let attempt = pod.name.attempt;
    let (rank, _) = pod.place()?;
    let peers = peers(cluster, pod);
    let ends = peers.clone().filter_map(|peer| match peer.process {
        ModelProcess::Ended(code) => Some(code),
        _ => None,
    });
    let leads = match cluster.may_lack_replicas() {
        true => cluster.group_of(pod).is_some_and(|group| group.leader == rank),
        false => rank == 0,
    };
    let fenced_off = formed && !holds(cluster, pod.name, disabled_guard) && leads;
    let drained_by_peer = formed && ends.clone().any(|code| code == 143);
    let was_replaced = newest(cluster, attempt, rank).is_some_and(|newer| newer.name != pod.name);
    // superseded by a newer attempt, or by another stage 0 if no other rank can lead
    let is_other = |holder: Name| rank == 0 && holder != pod.name && !cluster.may_lack_replicas();
    let superseded =
        pod.is_survivor && cluster.volume.holder.is_some_and(|holder| holder.attempt > attempt || is_other(holder));
    let missing = (0..pod.mesh.ranks()).any(|of| of != rank && !peers.clone().any(|peer| peer.is_of(of)));
    let lost = !cluster.replaces_stages && (ends.clone().any(|code| code != 0) || formed && missing);
    match () {
        () if is_done(cluster, pod, disabled_guard) => Some(0),
        () if was_replaced => Some(1),
        () if fenced_off => Some(if cluster.replaces_stages { 75 } else { 1 }),
        () if superseded => Some(75),
        () if drained_by_peer => Some(143),
        () if lost => Some(75),
        () if terminating => Some(143),
        () => None,
    }
}
