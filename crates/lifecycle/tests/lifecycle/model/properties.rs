//! The invariants of every state, and examples of states that must be reachable.

use stagecoach_lifecycle::*;
use stateright::Property;

use super::cluster_state::{ClusterState, ModelGroup, ModelQueue, NOW};
use super::model_pod::ModelPod;
use super::operator::TERMINATION_TIMEOUT_SECONDS;
use super::steps::{ClusterModel, ModelTransition};

/// An invariant of transitions. A violation is recorded when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BrokenInvariant {
    OnlyFenceHolderCommits,
    AttemptNumbersAreUnique,
    OnlyRecordedAttemptsAreCreated,
    PodsAreCreatedOnce,
    CurrentPodsAreKept,
    TerminalStateIsFinal,
    BudgetIsRespected,
    NoEarlyFailure,
    EnoughReplicas,
    NothingFollowsTheEnd,
}

pub(crate) const ONE_COMMITS: &str = "no older attempt commits while a newer one holds the fence";
pub(crate) const ONE_LIVES: &str = "no two attempts run, except on a lost node after the termination timeout";
pub(crate) const ATTEMPT_NUMBERS_ARE_UNIQUE: &str = "attempt numbers are unique";
pub(crate) const ONLY_RECORDED_ARE_CREATED: &str = "only recorded attempts are created";
pub(crate) const CREATED_ONCE: &str = "pods are created once";
pub(crate) const CURRENT_PODS_ARE_KEPT: &str = "pods of the current attempt are not deleted";
pub(crate) const TERMINAL: &str = "a terminal state is final";
pub(crate) const BUDGET: &str = "the restart budget is respected";
pub(crate) const EARLY: &str = "no job fails before its restart budget is used up";
/// An incarnation is the number of a stage's process in an attempt. A replacement has a higher number.
pub(crate) const CLAIMED_ONCE: &str = "no two processes claim the same incarnation of a stage";
pub(crate) const ENOUGH: &str = "no group has fewer replicas than restart.minDataParallel";
pub(crate) const NO_ATTEMPT_AFTER_COMPLETION: &str = "no attempt starts after a replica of an earlier attempt is done";
pub(crate) const RESERVED: &str = "no pod of a waiting job runs, except on a lost node after the termination timeout";
pub(crate) const FINAL_STATES_ARE_VALID: &str =
    "if no transition is left, the job has ended, is suspended or waits in a queue";

pub(crate) const COMPLETES: &str = "a job completes";
pub(crate) const REPLACES: &str = "a job completes in its first attempt with a stage replaced";
pub(crate) const REPLACED_BEFORE_NOTICE: &str = "a stage is replaced before its node notices the end of its process";
pub(crate) const THREE_ATTEMPTS: &str = "a job takes three attempts";
pub(crate) const GIVES_UP: &str = "a job fails with its budget exhausted";
pub(crate) const PROMOTES: &str = "a job completes in its first attempt with a spare in a lost stage's place";
pub(crate) const PROMOTED_TOO_LATE: &str = "a spare takes a place for which another pod was created";
pub(crate) const COMPLETES_WITHOUT_REPLICA: &str = "a job completes although its group lacks a replica";
pub(crate) const REPLICA_REJOINS: &str = "a group has a replica that the previous group lacked";
pub(crate) const MISTAKEN_PROMOTION: &str =
    "a group with a promoted spare commits while the stage 0 that the spare replaced is alive";
pub(crate) const COMPLETES_AFTER_EVICTION: &str = "a job completes after an eviction";
pub(crate) const COMPLETES_WITH_ADDED_REPLICA: &str =
    "a job completes in its first attempt with a replica that was admitted later";
/// Examples that must be reachable, so that no invariant holds vacuously.
pub(crate) const REACHABLE: [&str; 12] = [
    COMPLETES,
    REPLACES,
    REPLACED_BEFORE_NOTICE,
    THREE_ATTEMPTS,
    GIVES_UP,
    PROMOTES,
    PROMOTED_TOO_LATE,
    MISTAKEN_PROMOTION,
    COMPLETES_WITHOUT_REPLICA,
    REPLICA_REJOINS,
    COMPLETES_AFTER_EVICTION,
    COMPLETES_WITH_ADDED_REPLICA,
];

pub(crate) fn all() -> Vec<Property<ClusterModel>> {
    invariants().into_iter().chain(examples()).collect()
}

fn invariants() -> Vec<Property<ClusterModel>> {
    vec![
        Property::always(ONE_COMMITS, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::OnlyFenceHolderCommits)
        }),
        Property::always(ONE_LIVES, |_, cluster: &ClusterState| one_attempt_lives(cluster)),
        Property::always(ATTEMPT_NUMBERS_ARE_UNIQUE, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::AttemptNumbersAreUnique)
        }),
        Property::always(ONLY_RECORDED_ARE_CREATED, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::OnlyRecordedAttemptsAreCreated)
        }),
        Property::always(CREATED_ONCE, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::PodsAreCreatedOnce)
        }),
        Property::always(CURRENT_PODS_ARE_KEPT, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::CurrentPodsAreKept)
        }),
        Property::always(TERMINAL, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::TerminalStateIsFinal)
        }),
        Property::always(BUDGET, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::BudgetIsRespected)
        }),
        Property::always(EARLY, |_, cluster: &ClusterState| is_not_broken(cluster, BrokenInvariant::NoEarlyFailure)),
        Property::always(ENOUGH, |_, cluster: &ClusterState| is_not_broken(cluster, BrokenInvariant::EnoughReplicas)),
        Property::always(NO_ATTEMPT_AFTER_COMPLETION, |_, cluster: &ClusterState| {
            is_not_broken(cluster, BrokenInvariant::NothingFollowsTheEnd)
        }),
        Property::always(CLAIMED_ONCE, |_, cluster: &ClusterState| each_is_claimed_once(cluster)),
        Property::always(RESERVED, |_, cluster: &ClusterState| runs_with_reservation(cluster)),
        Property::always(FINAL_STATES_ARE_VALID, |model, cluster| {
            has_ended(cluster) || model.enabled(cluster).iter().any(|step| !step.is_fault())
        }),
    ]
}

fn examples() -> Vec<Property<ClusterModel>> {
    vec![
        Property::sometimes(COMPLETES, |_, cluster: &ClusterState| {
            cluster.job.recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(REPLACES, |_, cluster: &ClusterState| {
            let recorded = &cluster.job.recorded;
            let is_first = recorded.attempt.number == 1 && !recorded.incarnations.is_empty();
            is_first && recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(REPLACED_BEFORE_NOTICE, |_, cluster: &ClusterState| {
            let recorded = &cluster.job.recorded;
            let is_replaced = |pod: &ModelPod| {
                pod.place().is_some_and(|(rank, incarnation)| incarnation < recorded.incarnation(rank))
            };
            cluster.of(recorded.attempt.number).any(|pod| pod.unnoticed.is_some() && is_replaced(pod))
        }),
        Property::sometimes(PROMOTES, |_, cluster: &ClusterState| {
            let recorded = &cluster.job.recorded;
            let is_kept = |(rank, incarnation)| recorded.incarnation(rank) == incarnation;
            let took = cluster.of(1).any(|pod| pod.promoted_to.is_some_and(is_kept));
            took && recorded.attempt.number == 1 && recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(PROMOTED_TOO_LATE, |_, cluster: &ClusterState| {
            let recorded = &cluster.job.recorded;
            let is_late = |(rank, incarnation)| incarnation < recorded.incarnation(rank);
            cluster.of(recorded.attempt.number).any(|pod| pod.is_alive() && pod.promoted_to.is_some_and(is_late))
        }),
        Property::sometimes(MISTAKEN_PROMOTION, |_, cluster: &ClusterState| {
            let replaced = |pod: &ModelPod| pod.is_alive() && pod.place() == Some((0, 0));
            let holds = |pod: &ModelPod| pod.promoted_to.is_some() && cluster.volume.holder == Some(pod.name);
            cluster.volume.checkpoint > 0 && cluster.pods.iter().any(holds) && cluster.pods.iter().any(replaced)
        }),
        Property::sometimes(COMPLETES_WITHOUT_REPLICA, |_, cluster: &ClusterState| {
            let lacks = cluster.group().is_some_and(ModelGroup::lacks_a_replica);
            lacks && cluster.job.recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(REPLICA_REJOINS, |_, cluster: &ClusterState| {
            cluster.group().is_some_and(|group| group.took_back)
        }),
        Property::sometimes(THREE_ATTEMPTS, |_, cluster: &ClusterState| cluster.job.recorded.attempt.number >= 3),
        Property::sometimes(COMPLETES_AFTER_EVICTION, |_, cluster: &ClusterState| {
            let is_second = cluster.job.recorded.attempt.admission > 1;
            is_second && cluster.job.recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(COMPLETES_WITH_ADDED_REPLICA, |_, cluster: &ClusterState| {
            let recorded = &cluster.job.recorded;
            let has_all = cluster.group().is_some_and(|group| !group.lacks_a_replica());
            let is_grown = recorded.attempt.number == 1 && recorded.attempt.admitted_replicas == Some(2);
            is_grown && has_all && recorded.outcome() == Some(&JobOutcome::Complete)
        }),
        Property::sometimes(GIVES_UP, |_, cluster: &ClusterState| {
            cluster.job.recorded.outcome() == Some(&JobOutcome::Failed(JobFailureReason::BudgetExhausted))
        }),
    ]
}

fn is_not_broken(cluster: &ClusterState, invariant: BrokenInvariant) -> bool {
    cluster.history.broken != Some(invariant)
}

fn one_attempt_lives(cluster: &ClusterState) -> bool {
    let alive = || cluster.pods.iter().filter(|pod| pod.is_alive());
    let newest = alive().map(|pod| pod.name.attempt).max();
    let is_older = |pod: &ModelPod, other: &ModelPod| {
        (pod.name.attempt, pod.name.rank) == (other.name.attempt, other.name.rank)
            && pod.name.incarnation < other.name.incarnation
    };
    // Without spares, a replaced pod may stay alive only on a lost node. A pod that a spare has replaced may also stay
    // alive on other nodes, until it observes the promotion of the spare.
    let replaced = |pod: &ModelPod| cluster.spares == 0 && alive().any(|other| is_older(pod, other));
    alive().all(|pod| !replaced(pod) || !pod.is_reachable())
        && alive().all(|pod| Some(pod.name.attempt) == newest || timed_out_on_lost_node(pod))
}

fn each_is_claimed_once(cluster: &ClusterState) -> bool {
    let alive = cluster.pods.iter().filter(|pod| pod.is_alive());
    let mut claims: Vec<_> = alive.filter_map(|pod| Some((pod.name.attempt, pod.place()?))).collect();
    let all = claims.len();
    claims.sort_unstable();
    claims.dedup();
    claims.len() == all
}

/// Whether a pod is on a lost node and its termination timeout has passed.
fn timed_out_on_lost_node(pod: &ModelPod) -> bool {
    let waited = pod.deleted_at.is_some_and(|since| NOW >= since.plus_seconds(TERMINATION_TIMEOUT_SECONDS));
    !pod.is_reachable() && waited
}

/// Whether no pod runs while the job waits for a reservation in the queue. A pod on a lost node may still run after its
/// termination timeout.
fn runs_with_reservation(cluster: &ClusterState) -> bool {
    let mut alive = cluster.pods.iter().filter(|pod| pod.is_alive());
    !matches!(cluster.queue, ModelQueue::Waiting(_)) || alive.all(timed_out_on_lost_node)
}

/// Whether no further transition is required.
fn has_ended(cluster: &ClusterState) -> bool {
    let none_run = cluster.pods.iter().all(|pod| !pod.is_alive() || !pod.is_reachable());
    let may_run = !cluster.job.desired.suspend && cluster.queue.admission() != Admission::Waiting;
    let is_idle = !may_run && cluster.job.recorded.attempt_phase == AttemptPhase::Idle;
    cluster.history.broken.is_some() || none_run && (is_idle || cluster.job.recorded.outcome().is_some())
}

impl ModelTransition {
    /// Whether the transition is a fault. A job must reach its end without the help of faults.
    pub(crate) fn is_fault(&self) -> bool {
        !matches!(
            self,
            ModelTransition::Observe
                | ModelTransition::Write
                | ModelTransition::PodTransition(_)
                | ModelTransition::Wait
                | ModelTransition::Admit
                | ModelTransition::AdmitMore
        )
    }
}
