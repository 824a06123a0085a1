//! The model: the enabled transitions, and their effects.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;
use stateright::{Model, Property};

use super::cluster_state::{
    ClusterState, Faults, HORIZON_SECONDS, JobObject, ModelOperator, ModelQueue, ModelVolume, NOW, Name, PastFacts,
    StaleCache,
};
use super::faults::apply_fault;
use super::operator::{self, Guard, TERMINATION_TIMEOUT_SECONDS};
use super::pods::{self, PodTransition};
use super::properties;

/// A cluster to explore.
#[derive(Clone, Debug)]
pub(crate) struct ClusterModel {
    /// The initial stages and replicas.
    pub(crate) mesh: Mesh,
    /// Whether lost stages are replaced.
    pub(crate) replaces_stages: bool,
    /// The number of spares beside the stages.
    pub(crate) spares: u32,
    /// The smallest number of replicas with which a group may train. A value above the number of replicas requires all
    /// of them.
    pub(crate) min_data_parallel: u32,
    /// Whether the job has a queue.
    pub(crate) is_queued: bool,
    /// Whether the queue admits one replica first, and may admit more later.
    pub(crate) is_elastic: bool,
    pub(crate) faults: Faults,
    pub(crate) disabled_guard: Option<Guard>,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelTransition {
    /// The operator reconciles because something changed.
    Observe,
    /// The operator makes its next write.
    Write,
    /// A transition of a pod, a group, or a node.
    PodTransition(PodTransition),
    /// Time advances to the operator's wake-up, because no other transition is immediate. Time does not advance before
    /// an immediate transition.
    Wait,
    /// Time advances although another transition is immediate: pods or the operator are slow.
    WaitDespiteActivity,
    /// The operator writes the status, and a cache keeps the previous version.
    WriteWithStaleCache,
    /// A cache of the pods receives no more events.
    PodCacheStalls,
    /// The operator reconciles from the stale cache.
    ObserveStale,
    /// The operator crashes, and another operator starts.
    Crash,
    /// A process exits with a code.
    Fail(Name, i32),
    /// A process exits with 137. The other stages report the exit, but the node has not noticed it yet.
    FailUnnoticed(Name),
    /// A group promotes a spare to a stage 0 that is alive, and continues without that stage 0.
    PromoteForLiving(Name),
    /// Another client deletes a pod.
    Evict(Name),
    /// A pod's node is partitioned from the API server.
    Partition(Name),
    /// A process on a partitioned node exits, unobserved.
    ExitUnobserved(Name),
    /// The user changes the spec.
    Change(Desired),
    /// The queue admits the job.
    Admit,
    /// The queue admits one more replica.
    AdmitMore,
    /// The queue evicts the job.
    EvictJob,
    /// The status is lost.
    LoseStatus,
}

impl ClusterModel {
    /// Returns all enabled transitions of a state.
    pub(crate) fn enabled(&self, cluster: &ClusterState) -> Vec<ModelTransition> {
        let mut steps = Vec::new();
        if cluster.history.broken.is_some() {
            return steps;
        }
        let resting = cluster.operator.plan.is_empty();
        if !resting {
            steps.push(ModelTransition::Write);
        } else if cluster.operator.has_unobserved_change {
            steps.push(ModelTransition::Observe);
        }
        let enabled_transitions = pods::enabled_transitions(cluster, self.disabled_guard);
        let is_immediate = enabled_transitions.iter().any(|(_, is_immediate)| *is_immediate);
        steps.extend(enabled_transitions.into_iter().map(|(happens, _)| ModelTransition::PodTransition(happens)));
        if resting && time_may_pass(cluster) {
            if !is_immediate && !cluster.operator.has_unobserved_change {
                steps.push(ModelTransition::Wait);
            } else if cluster.remaining_faults.failures > 0 {
                steps.push(ModelTransition::WaitDespiteActivity);
            }
        }
        if let ModelQueue::Waiting(_) = cluster.queue {
            steps.push(ModelTransition::Admit);
        }
        let may_grow = cluster.admitted_replicas.is_some_and(|admitted| admitted < self.mesh.data_parallel);
        if may_grow && matches!(cluster.queue, ModelQueue::Admitted(_)) && cluster.job.recorded.outcome().is_none() {
            steps.push(ModelTransition::AdmitMore);
        }
        self.faults_of_the_operator(cluster, &mut steps);
        self.faults_of_others(cluster, &mut steps);
        steps
    }
}

/// Whether time may advance to the operator's wake-up. A reachable node kills and removes terminating pods before the
/// operator's timeout passes. Deadlines beyond the horizon are never reached.
fn time_may_pass(cluster: &ClusterState) -> bool {
    let reachable = cluster.pods.iter().filter(|pod| pod.is_alive() && pod.is_reachable());
    let deleted_at = reachable.filter_map(|pod| pod.deleted_at);
    let latest = deleted_at.map(|since| since.plus_seconds(TERMINATION_TIMEOUT_SECONDS)).min();
    let wake_at = next_time(cluster).filter(|wake_at| *wake_at <= NOW.plus_seconds(HORIZON_SECONDS));
    wake_at.is_some_and(|wake_at| latest.is_none_or(|latest| wake_at < latest))
}

/// Returns the time at which the operator wakes up. With spares, the time is rounded up to a multiple of ten seconds,
/// so that ages stay comparable.
fn next_time(cluster: &ClusterState) -> Option<UnixMillis> {
    let wake_at = cluster.operator.wake_at?;
    let unit = if cluster.spares > 0 { 10_000 } else { 1 };
    Some(UnixMillis(wake_at.0.max(NOW.0).next_multiple_of(unit)))
}

impl Model for ClusterModel {
    type State = ClusterState;
    type Action = ModelTransition;

    fn init_states(&self) -> Vec<ClusterState> {
        vec![ClusterState {
            job: JobObject {
                desired: Desired {
                    mesh: self.mesh,
                    revision: 1,
                    suspend: false,
                    admission: Admission::NotRequired,
                    admitted_replicas: None,
                },
                recorded: JobState::default(),
            },
            pods: vec![],
            volume: ModelVolume { holder: None, leader: None, checkpoint: 0 },
            operator: ModelOperator { has_unobserved_change: true, wake_at: None, plan: vec![], job_is_current: true },
            stale_cache: None,
            replaces_stages: self.replaces_stages,
            spares: self.spares,
            min_data_parallel: self.min_data_parallel,
            groups: vec![],
            admitted_replicas: self.is_elastic.then_some(1),
            queue: if self.is_queued { ModelQueue::Waiting(0) } else { ModelQueue::None },
            remaining_faults: self.faults.clone(),
            history: PastFacts::default(),
        }]
    }

    fn actions(&self, cluster: &ClusterState, steps: &mut Vec<ModelTransition>) {
        steps.extend(self.enabled(cluster));
    }

    fn next_state(&self, cluster: &ClusterState, step: ModelTransition) -> Option<ClusterState> {
        let mut next = cluster.clone();
        let faults = &mut next.remaining_faults;
        match step {
            ModelTransition::Observe => operator::observe(&mut next, false, self.disabled_guard),
            ModelTransition::ObserveStale => operator::observe(&mut next, true, self.disabled_guard),
            ModelTransition::Write => operator::write(&mut next, false, self.disabled_guard),
            ModelTransition::WriteWithStaleCache => {
                faults.stale_reads -= 1;
                operator::write(&mut next, true, self.disabled_guard);
            }
            ModelTransition::PodCacheStalls => {
                faults.stale_reads -= 1;
                next.stale_cache = Some(StaleCache::Pods(next.pods.clone()));
            }
            ModelTransition::PodTransition(happens) => pods::apply(&mut next, happens, self.disabled_guard),
            ModelTransition::Wait | ModelTransition::WaitDespiteActivity => {
                faults.failures -= u8::from(step == ModelTransition::WaitDespiteActivity);
                let wake_at = next_time(&next)?;
                next.operator.wake_at = None;
                next.advance_time(UnixMillis(wake_at.0.saturating_sub(NOW.0)));
                next.operator.has_unobserved_change = true;
            }
            ModelTransition::Crash => {
                faults.crashes -= 1;
                next.operator =
                    ModelOperator { has_unobserved_change: true, wake_at: None, plan: vec![], job_is_current: true };
            }
            ModelTransition::Admit => {
                if let ModelQueue::Waiting(before) = next.queue {
                    next.queue = ModelQueue::Admitted(before + 1);
                    next.admitted_replicas = next.admitted_replicas.map(|_| 1);
                }
                next.operator.has_unobserved_change = true;
            }
            ModelTransition::AdmitMore => {
                next.admitted_replicas = next.admitted_replicas.map(|admitted| admitted + 1);
                next.operator.has_unobserved_change = true;
            }
            fault => apply_fault(&mut next, fault),
        }
        next.canonicalise();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
