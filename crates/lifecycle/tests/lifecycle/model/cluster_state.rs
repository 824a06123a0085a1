//! The model's state: the objects in the API server, the processes on the nodes, the shared volume, and the operator's
//! memory.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::model_pod::ModelPod;
use super::properties::BrokenInvariant;

/// The current time, which is constant. When time advances, all other times become older instead, so that states that
/// differ only by a time shift are equal.
pub(crate) const NOW: UnixMillis = UnixMillis::from_seconds(10_000);
/// The model does not distinguish ages above this number of seconds. The number exceeds every timeout.
pub(crate) const HORIZON_SECONDS: u64 = 40;

/// The rank in the name of a pod that was created as a spare. Such a name has the spare's number instead of an
/// incarnation.
pub(crate) const SPARE: u32 = u32::MAX;

/// The whole state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterState {
    pub(crate) job: JobObject,
    /// The pods, sorted by attempt and stage. No two pods have the same name, as in the API server.
    pub(crate) pods: Vec<ModelPod>,
    pub(crate) volume: ModelVolume,
    pub(crate) operator: ModelOperator,
    /// The older result that the next read from a stale cache returns.
    pub(crate) stale_cache: Option<StaleCache>,
    /// Whether lost stages are replaced while the other stages survive.
    pub(crate) replaces_stages: bool,
    /// The number of spares beside the stages.
    pub(crate) spares: u32,
    /// The smallest number of replicas with which a group may train; `u32::MAX` if no replica may be missing.
    pub(crate) min_data_parallel: u32,
    /// The groups (sets of instances that train together) that have formed, in order. The list is kept only if there
    /// are spares or if replicas may be missing. An older group stays in the list only while a process is still in it.
    pub(crate) groups: Vec<ModelGroup>,
    /// The queue of the job.
    pub(crate) queue: ModelQueue,
    /// The number of replicas that the queue admits. `None` if the queue admits all.
    pub(crate) admitted_replicas: Option<u32>,
    /// The faults that may still happen.
    pub(crate) remaining_faults: Faults,
    pub(crate) history: PastFacts,
}

/// The state of the job in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ModelQueue {
    /// The job has no queue.
    #[default]
    None,
    /// The job waits, and was admitted this number of times before.
    Waiting(u64),
    /// The job is admitted for the n-th time.
    Admitted(u64),
    /// The job is evicted, and still has the reservation of its n-th admission.
    Evicted(u64),
}

impl ModelQueue {
    pub(crate) fn admission(self) -> Admission {
        match self {
            ModelQueue::None => Admission::NotRequired,
            ModelQueue::Admitted(id) => Admission::Admitted(id),
            ModelQueue::Waiting(_) | ModelQueue::Evicted(_) => Admission::Waiting,
        }
    }
}

/// The stages of one attempt that have formed a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelGroup {
    pub(crate) attempt: u64,
    /// The incarnation of each rank in the group. `None` for a stage of a replica that the group lacks.
    pub(crate) incarnations: Vec<Option<u32>>,
    /// Whether an earlier group of the attempt lacked a replica that this group has.
    pub(crate) took_back: bool,
    /// The rank that leads the group.
    pub(crate) leader: u32,
    /// The rank that leads the next group if the leader's process ends: stage 0 of the second replica.
    pub(crate) successor: Option<u32>,
}

impl ModelGroup {
    /// Whether the process of this pod is in the group.
    pub(crate) fn has(&self, pod: &ModelPod) -> bool {
        let knows = |(rank, incarnation): (u32, u32)| self.incarnations[rank as usize] == Some(incarnation);
        pod.name.attempt == self.attempt && pod.place().is_some_and(knows)
    }

    pub(crate) fn lacks_a_replica(&self) -> bool {
        self.incarnations.contains(&None)
    }
}

/// The job object. The model has no resourceVersion. `ModelOperator::job_is_current` is enough, because only later
/// writes of other clients matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobObject {
    pub(crate) desired: Desired,
    pub(crate) recorded: JobState,
}

/// A pod's name within the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) attempt: u64,
    pub(crate) rank: u32,
    pub(crate) incarnation: u32,
}

/// The shared volume. Its newest fence gives one stage 0 the right to commit checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelVolume {
    /// The stage 0 that took the newest fence. `None` after its process has ended.
    pub(crate) holder: Option<Name>,
    /// The attempt and rank that took the newest fence. Used only if replicas may be missing.
    pub(crate) leader: Option<(u64, u32)>,
    /// The number of steps in the newest checkpoint.
    pub(crate) checkpoint: u64,
}

/// The operator's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelOperator {
    /// Whether there is a change that the operator has not observed yet.
    pub(crate) has_unobserved_change: bool,
    /// The time of the next reconcile without a change.
    pub(crate) wake_at: Option<UnixMillis>,
    /// Pending writes, the next one last.
    pub(crate) plan: Vec<Write>,
    /// Whether the job is unchanged since the plan was made.
    pub(crate) job_is_current: bool,
}

/// A write to the API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Record(Box<Record>),
    Create {
        name: Name,
        mesh: Mesh,
    },
    /// Returns the reservation of an evicted job to the queue.
    Release,
    /// Deletes by UID, so that a later pod of the same name is never deleted.
    Delete(Name),
}

/// A write of the job's status, and its effects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) state: JobState,
    pub(crate) starts_attempt: bool,
    pub(crate) resets_budget: bool,
    pub(crate) returns_restart_to_budget: bool,
    pub(crate) counted: bool,
    /// Whether the first replica was done. Used only if replicas may be missing.
    pub(crate) is_done: bool,
}

/// The result of a stale read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StaleCache {
    Job(Box<JobObject>),
    Pods(Vec<ModelPod>),
}

/// The number of times that each fault may happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// The operator crashes between two writes, and loses its memory.
    pub(crate) crashes: u8,
    /// The operator reads an overwritten version of the job.
    pub(crate) stale_reads: u8,
    /// A process fails, loses a peer, is killed, or is evicted; or pods are slower than a timeout.
    pub(crate) failures: u8,
    /// A node is partitioned from the API server.
    pub(crate) partitions: u8,
    /// The user suspends, resumes or scales the job.
    pub(crate) spec_changes: u8,
    /// The job's status is lost.
    pub(crate) status_losses: u8,
    /// The queue evicts the job.
    pub(crate) evictions: u8,
}

/// The past events on which the invariants depend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PastFacts {
    /// The highest attempt number that was recorded.
    pub(crate) highest: u64,
    /// The highest attempt number that was recorded before the status was lost.
    pub(crate) highest_before_loss: u64,
    /// The pods of the latest record in which `all_created` is true.
    pub(crate) created: Vec<Name>,
    /// The number of counted restarts since a checkpoint was committed.
    pub(crate) counted: u32,
    /// The invariant that was violated. Exploration ends there.
    pub(crate) broken: Option<BrokenInvariant>,
}

impl ClusterState {
    /// Returns the last group that formed.
    pub(crate) fn group(&self) -> Option<&ModelGroup> {
        self.groups.last()
    }

    /// Returns the group that a process is in, or was in last.
    pub(crate) fn group_of(&self, pod: &ModelPod) -> Option<&ModelGroup> {
        self.groups.iter().rfind(|group| group.has(pod))
    }

    /// Whether a group may lack a replica.
    pub(crate) fn may_lack_replicas(&self) -> bool {
        self.min_data_parallel != u32::MAX
    }

    pub(crate) fn pod(&self, name: Name) -> Option<&ModelPod> {
        self.pods.iter().find(|pod| pod.name == name)
    }

    /// Applies a change to an existing pod.
    pub(crate) fn change(&mut self, name: Name, change: impl FnOnce(&mut ModelPod)) {
        let pod = self.pods.iter_mut().find(|pod| pod.name == name).unwrap();
        let before = pod.shown();
        change(pod);
        let seen = pod.shown() != before;
        self.operator.has_unobserved_change |= seen;
    }

    pub(crate) fn of(&self, attempt: u64) -> impl Iterator<Item = &ModelPod> + Clone {
        self.pods.iter().filter(move |pod| pod.name.attempt == attempt)
    }

    pub(crate) fn report_violation(&mut self, invariant: BrokenInvariant) {
        self.history.broken.get_or_insert(invariant);
    }
}
