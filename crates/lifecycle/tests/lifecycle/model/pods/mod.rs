//! Transitions of pods, of their nodes, and of the volume.

mod groups;

use self::groups::*;
pub(crate) use self::groups::{is_heard_to_train_without, leads_a_group, stands_by};
use super::cluster_state::{ClusterState, ModelGroup, NOW, Name, Write};
use super::model_pod::{ModelPod, ModelProcess};
use super::operator::Guard;
use super::properties::BrokenInvariant;

/// The step of the checkpoint at which training is done.
pub(crate) const FINAL_CHECKPOINT_STEP: u64 = 1;

/// A transition of a pod or of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodTransition {
    /// A process starts.
    Start(Name),
    /// A stage 0 takes the next fence.
    TakeFence(Name),
    /// A process has lost its group and waits for the next one.
    Survive(Name),
    /// An attempt's group forms.
    Form(u64),
    /// The group of this stage 0 commits its next checkpoint.
    Commit(Name),
    /// A process exits because of the state of its group.
    End(Name, i32),
    /// The group of a spare promotes the spare to a lost stage.
    Promote(Name, u32),
    /// The API shows the promotion.
    ShowPromotion(Name),
    /// A node reports that a process has ended.
    Notice(Name),
    /// A node removes a terminating pod that has exited.
    Remove(Name),
}

/// Returns the enabled transitions, and whether each is immediate, which means that time does not advance before it. A
/// process on a partitioned node may take any time.
pub(crate) fn enabled_transitions(cluster: &ClusterState, disabled_guard: Option<Guard>) -> Vec<(PodTransition, bool)> {
    let mut enabled_transitions = Vec::new();
    let mut attempts: Vec<_> = cluster.pods.iter().map(|pod| pod.name.attempt).collect();
    attempts.dedup();
    for attempt in attempts {
        if let Some(members) = forming_members(cluster, attempt, disabled_guard)
            && members[0].fenced
            && cluster.volume.holder == Some(members[0].name)
        {
            // the group waits some time for a replica of unknown state
            let is_immediate = are_prompt(cluster, &members) && members.len() as u32 == members[0].mesh.ranks();
            enabled_transitions.push((PodTransition::Form(attempt), is_immediate));
        }
    }
    for members in training_groups(cluster) {
        let leader = members[0].name;
        let is_immediate = are_prompt(cluster, &members);
        if holds(cluster, leader, disabled_guard) && cluster.volume.checkpoint < FINAL_CHECKPOINT_STEP {
            enabled_transitions.push((PodTransition::Commit(leader), is_immediate));
            if replica_is_back(cluster, members[0]) {
                enabled_transitions.push((PodTransition::Survive(leader), is_immediate));
            }
        }
    }
    for pod in &cluster.pods {
        let name = pod.name;
        // a terminating process may use its grace period
        let is_immediate = is_prompt(pod);
        if pod.process == ModelProcess::Pending && is_immediate {
            enabled_transitions.push((PodTransition::Start(name), true));
        }
        if pod.process == ModelProcess::Starting && !pod.fenced && may_lead(cluster, pod) {
            enabled_transitions.push((PodTransition::TakeFence(name), is_immediate));
        }
        if let Some(code) = exit_code(cluster, pod, disabled_guard) {
            enabled_transitions.push((PodTransition::End(name, code), is_immediate));
        }
        if cluster.replaces_stages && has_lost_its_group(cluster, pod, disabled_guard) {
            enabled_transitions.push((PodTransition::Survive(name), is_immediate));
        }
        for rank in lost_places(cluster, pod) {
            enabled_transitions.push((PodTransition::Promote(name, rank), false));
        }
        if pod.promoted_to.is_some() && !pod.promotion_shows && pod.is_reachable() && is_current(cluster, pod) {
            enabled_transitions.push((PodTransition::ShowPromotion(name), false));
        }
        if gives_up(cluster, pod) {
            enabled_transitions.push((PodTransition::End(name, 75), false));
        }
        if pod.unnoticed.is_some() {
            enabled_transitions.push((PodTransition::Notice(name), false));
        }
        // the exit code of a spare that was asked to exit affects no decision
        let stopped = matches!(pod.process, ModelProcess::Pending | ModelProcess::Ended(_)) || pod.place().is_none();
        if pod.is_reachable() && pod.deleted_at.is_some() && stopped {
            enabled_transitions.push((PodTransition::Remove(name), false));
        }
    }
    enabled_transitions
}

/// Applies a transition.
pub(crate) fn apply(cluster: &mut ClusterState, transition: PodTransition, disabled_guard: Option<Guard>) {
    match transition {
        PodTransition::Start(name) => cluster.change(name, |pod| {
            // a spare that is not ready yet counts as pending
            pod.enter(if pod.place().is_some() { ModelProcess::Starting } else { ModelProcess::Ready });
        }),
        PodTransition::TakeFence(name) => {
            cluster.volume.holder = Some(name);
            let rank = cluster.pod(name).and_then(ModelPod::place).map_or(0, |(rank, _)| rank);
            cluster.volume.leader = cluster.may_lack_replicas().then_some((name.attempt, rank));
            cluster.change(name, |pod| pod.fenced = true);
        }
        PodTransition::Survive(name) => cluster.change(name, |pod| {
            pod.enter(ModelProcess::Starting);
            (pod.fenced, pod.is_survivor) = (false, true);
        }),
        PodTransition::Form(attempt) => form(cluster, attempt, disabled_guard),
        PodTransition::Commit(stage_0) => {
            if cluster.volume.holder.is_some_and(|holder| holder != stage_0) {
                cluster.report_violation(BrokenInvariant::OnlyFenceHolderCommits);
            }
            cluster.volume.checkpoint += 1;
            cluster.operator.has_unobserved_change = true;
        }
        PodTransition::End(name, code) => cluster.change(name, |pod| pod.enter(ModelProcess::Ended(code))),
        PodTransition::Promote(name, rank) => promote(cluster, name, rank),
        PodTransition::ShowPromotion(name) => cluster.change(name, |pod| pod.promotion_shows = true),
        PodTransition::Notice(name) => cluster.change(name, |pod| (pod.unnoticed, pod.at) = (None, NOW)),
        PodTransition::Remove(name) => {
            cluster.pods.retain(|pod| pod.name != name);
            // deletions carry the UID, so that a pending deletion of the removed pod has no effect
            cluster.operator.plan.retain(|write| *write != Write::Delete(name));
            cluster.operator.job_is_current |= cluster.operator.plan.is_empty();
            cluster.operator.has_unobserved_change = true;
        }
    }
}

/// Forms a group of the processes that wait for it.
fn form(cluster: &mut ClusterState, attempt: u64, disabled_guard: Option<Guard>) {
    let members = forming_members(cluster, attempt, disabled_guard).unwrap_or_default();
    let names: Vec<_> = members.iter().map(|pod| pod.name).collect();
    let mesh = members.first().map(|pod| pod.mesh).unwrap_or_default();
    if cluster.spares > 0 || cluster.may_lack_replicas() {
        let known = |rank| members.iter().filter_map(|pod| pod.place()).find(|(of, _)| *of == rank);
        let incarnations: Vec<_> = (0..mesh.ranks()).map(|rank| Some(known(rank)?.1)).collect();
        let before = cluster.group().filter(|group| group.attempt == attempt);
        let is_back = |group: &ModelGroup| group.took_back || group.lacks_a_replica();
        let took_back = !incarnations.contains(&None) && before.is_some_and(is_back);
        let rank_at = |place: u32| Some(members.get(place as usize)?.place()?.0);
        let (leader, successor) = (rank_at(0).unwrap_or(0), rank_at(mesh.stages));
        cluster.groups.push(ModelGroup { attempt, incarnations, took_back, leader, successor });
    }
    if names.len() < needed_replicas(cluster, mesh) * mesh.stages as usize {
        cluster.report_violation(BrokenInvariant::EnoughReplicas);
    }
    for name in names {
        cluster.change(name, |pod| {
            pod.enter(ModelProcess::Ready);
            (pod.fenced, pod.is_survivor) = (false, false);
        });
    }
}

/// Promotes a spare to the stage of `rank`, with the incarnation after the stage's last one in the group.
pub(crate) fn promote(cluster: &mut ClusterState, name: Name, rank: u32) {
    let group = cluster.groups.last_mut();
    let Some(incarnation) = group.and_then(|group| group.incarnations[rank as usize].as_mut()) else { return };
    *incarnation += 1;
    let promoted_to = Some((rank, *incarnation));
    cluster.change(name, |pod| {
        pod.promoted_to = promoted_to;
        pod.enter(ModelProcess::Starting);
    });
}
