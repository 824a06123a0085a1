//! The model's state: the objects in the API server, the processes on the nodes, the shared volume, and the operator's
//! memory.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::properties::BrokenInvariant;

/// The current time is constant. Advancing time ages everything else, so that states that differ only by a time shift
/// are equal.
pub(crate) const NOW: UnixMillis = UnixMillis::from_seconds(10_000);
/// Ages above this number of seconds are equal. The number exceeds every timeout.
pub(crate) const HORIZON_SECONDS: u64 = 40;

/// The rank in the name of a pod that was created as a spare. The name then has the spare's number instead of an
/// incarnation.
pub(crate) const SPARE: u32 = u32::MAX;

/// The whole state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterState {
    pub(crate) job: JobObject,
    /// The pods by attempt and stage. A name occurs at most once, as in the API server.
    pub(crate) pods: Vec<ModelPod>,
    pub(crate) volume: ModelVolume,
    pub(crate) operator: ModelOperator,
    /// The result of another read from a stale cache.
    pub(crate) stale_cache: Option<StaleCache>,
    /// Whether lost stages are replaced while the other stages survive.
    pub(crate) replaces_stages: bool,
    /// The number of spares beside the stages.
    pub(crate) spares: u32,
    /// The minimal number of replicas with which a group may train.
    pub(crate) min_data_parallel: u32,
    /// The groups that have formed, in order. The list is kept only if there are spares or if replicas may be missing.
    /// An older group stays in the list only while a process is still in it.
    pub(crate) groups: Vec<ModelGroup>,
    /// The queue of the job.
    pub(crate) queue: ModelQueue,
    /// The number of replicas that the queue admits; `None` for all.
    pub(crate) admitted_replicas: Option<u32>,
    /// Faults that may still happen.
    pub(crate) remaining_faults: Faults,
    pub(crate) history: History,
}

/// The job's place in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ModelQueue {
    /// The job has no queue.
    #[default]
    None,
    /// The job waits after this number of admissions.
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
    /// For each rank, the incarnation that the group knows; `None` for a stage of a replica that the group lacks.
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

/// The job object. `ModelOperator::job_is_current` stands for its resourceVersion, because the only thing that matters
/// is whether another client has written since.
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

/// A pod: the object and its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelPod {
    pub(crate) name: Name,
    /// The stages and replicas of the pod's attempt.
    pub(crate) mesh: Mesh,
    pub(crate) process: ModelProcess,
    /// The stage whose place a spare has taken, and its incarnation there.
    pub(crate) promoted_to: Option<(u32, u32)>,
    /// Whether the API shows the promotion.
    pub(crate) promotion_shows: bool,
    /// The time since which the API shows the pod's state.
    pub(crate) at: UnixMillis,
    /// Whether this stage 0 has taken a fence for its next group.
    pub(crate) fenced: bool,
    /// Whether the process has lost a group and waits for the next.
    pub(crate) is_survivor: bool,
    /// The time of the deletion request. The node terminates the process, unless the node is partitioned.
    pub(crate) deleted_at: Option<UnixMillis>,
    /// The state that the API shows permanently if the node is partitioned, while the process continues to run.
    pub(crate) partitioned: Option<ModelProcess>,
    /// The state that the API shows if the process has ended and the other stages report it, but the node has not
    /// noticed.
    pub(crate) unnoticed: Option<ModelProcess>,
}

/// The state of a pod in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Stage(StageInstance),
    Spare(SpareInstance),
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ModelProcess {
    Pending,
    Starting,
    Ready,
    Ended(i32),
}

/// The shared volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelVolume {
    /// The stage 0 that took the newest fence, as long as it lives.
    pub(crate) holder: Option<Name>,
    /// The attempt and rank that took the newest fence; used only if replicas may be missing.
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
    /// Gives the reservation of an evicted job back.
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
    pub(crate) gives_back: bool,
    pub(crate) counted: bool,
    /// Whether the first replica was done; used only if replicas may be missing.
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

/// The past, as far as the invariants depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The highest attempt number that was recorded.
    pub(crate) highest: u64,
    /// The highest attempt number that was recorded before the status was lost.
    pub(crate) highest_before_loss: u64,
    /// The pods in the latest record of created pods.
    pub(crate) created: Vec<Name>,
    /// The number of counted restarts since a checkpoint was committed.
    pub(crate) counted: u32,
    /// The invariant that was violated. Exploration ends there.
    pub(crate) broken: Option<BrokenInvariant>,
}

impl ClusterState {
    /// The last group that formed.
    pub(crate) fn group(&self) -> Option<&ModelGroup> {
        self.groups.last()
    }

    /// The group that a process is in, or was in last.
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

impl ModelPod {
    /// The stage of the pod's process, and its incarnation; `None` for a waiting spare.
    pub(crate) fn place(&self) -> Option<(u32, u32)> {
        let Name { rank, incarnation, .. } = self.name;
        if rank == SPARE { self.promoted_to } else { Some((rank, incarnation)) }
    }

    pub(crate) fn is_of(&self, rank: u32) -> bool {
        self.place().is_some_and(|(of, _)| of == rank)
    }

    /// The instance or the spare as the API shows it.
    pub(crate) fn shown(&self) -> Shown {
        let (state, since) = match (self.partitioned.or(self.unnoticed).unwrap_or(self.process), self.deleted_at) {
            (ModelProcess::Ended(code), _) => (InstanceState::Exited(Exit::with_code(code)), self.at),
            (_, Some(since)) => (InstanceState::Terminating, since),
            (ModelProcess::Pending, None) => (InstanceState::Pending, self.at),
            (ModelProcess::Starting, None) => (InstanceState::Starting, self.at),
            (ModelProcess::Ready, None) => (InstanceState::Ready, self.at),
        };
        let Name { attempt, rank, incarnation } = self.name;
        let spare = (rank == SPARE).then_some(incarnation);
        match (self.place().filter(|_| spare.is_none() || self.promotion_shows), spare) {
            (Some((rank, incarnation)), spare) => {
                let pod_conditions = Vec::new();
                Shown::Stage(StageInstance { rank, attempt, incarnation, spare, state, since, pod_conditions })
            }
            // until the API shows the promotion, the spare still seems to wait
            (None, _)
                if self.promoted_to.is_some() && matches!(state, InstanceState::Starting | InstanceState::Ready) =>
            {
                let since = UnixMillis(NOW.0 - HORIZON_SECONDS * 1000);
                Shown::Spare(SpareInstance { number: incarnation, attempt, state: InstanceState::Ready, since })
            }
            (None, _) => Shown::Spare(SpareInstance { number: incarnation, attempt, state, since }),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.process, ModelProcess::Ended(_))
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.partitioned.is_none()
    }

    pub(crate) fn enter(&mut self, process: ModelProcess) {
        self.process = process;
        if self.is_reachable() {
            self.at = NOW;
        }
    }
}
