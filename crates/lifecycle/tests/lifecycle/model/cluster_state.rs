//! The model's state: the objects in the API server, the processes on the nodes, the shared volume, and the operator's
//! memory.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::properties::BrokenInvariant;

/// The current time is constant: advancing time ages everything else, so that states that differ only by a time shift are
/// equal.
pub(crate) const NOW: UnixMillis = UnixMillis::from_seconds(10_000);
/// Ages beyond this many seconds are equal: longer than every timeout.
pub(crate) const HORIZON_SECONDS: u64 = 40;

/// In a pod's name: that it was created as a spare; its number is in the place of the incarnation.
pub(crate) const SPARE: u32 = u32::MAX;

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterState {
    pub(crate) job: JobObject,
    /// By attempt and stage: one a name, as the API server has it.
    pub(crate) pods: Vec<ModelPod>,
    pub(crate) volume: ModelVolume,
    pub(crate) operator: ModelOperator,
    /// What one more read from a stale cache returns.
    pub(crate) stale_cache: Option<StaleCache>,
    /// Whether lost stages are replaced, and the others survive.
    pub(crate) replaces_stages: bool,
    /// How many spares wait beside the stages.
    pub(crate) spares: u32,
    /// With how few replicas a group may train.
    pub(crate) min_data_parallel: u32,
    /// With spares, or where replicas may be missing: the groups that formed, the last one last. Of older ones those that a process
    /// is still in.
    pub(crate) groups: Vec<ModelGroup>,
    /// Faults that may still happen.
    pub(crate) remaining_faults: Faults,
    pub(crate) history: History,
}

/// The stages of one attempt that have formed a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelGroup {
    pub(crate) attempt: u64,
    /// By rank the incarnation that it knows; none of a stage of a replica that it lacks.
    pub(crate) incarnations: Vec<Option<u32>>,
    /// Whether an earlier group of the attempt lacked a replica that this one has.
    pub(crate) took_back: bool,
    /// The rank that leads it.
    pub(crate) leader: u32,
    /// The rank that leads the next group if the leader's process ends: the stage 0 of the second replica.
    pub(crate) successor: Option<u32>,
}

impl ModelGroup {
    /// Whether the process of this pod is in it.
    pub(crate) fn has(&self, pod: &ModelPod) -> bool {
        let knows = |(rank, incarnation): (u32, u32)| self.incarnations[rank as usize] == Some(incarnation);
        pod.name.attempt == self.attempt && pod.place().is_some_and(knows)
    }

    pub(crate) fn lacks_a_replica(&self) -> bool {
        self.incarnations.contains(&None)
    }
}

/// The job object. Its resourceVersion is `ModelOperator::job_is_current`: all that matters is whether another client wrote since.
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
    /// Stages and replicas of its attempt.
    pub(crate) mesh: Mesh,
    pub(crate) process: ModelProcess,
    /// The stage whose place a spare has taken, and its incarnation there.
    pub(crate) takes: Option<(u32, u32)>,
    /// Whether the API shows that it has.
    pub(crate) takeover_shows: bool,
    /// Since when the API shows that.
    pub(crate) at: UnixMillis,
    /// Whether this stage 0 took a fence for its next group.
    pub(crate) fenced: bool,
    /// Whether it has lost a group and waits for the next.
    pub(crate) is_survivor: bool,
    /// When deletion was requested; the node terminates the process, unless it is partitioned.
    pub(crate) deleted_at: Option<UnixMillis>,
    /// Its node is partitioned: the API shows this state for ever, and the process runs on.
    pub(crate) partitioned: Option<ModelProcess>,
    /// Its process has ended, as the other stages report, and its node has not noticed: the API shows this state.
    pub(crate) unnoticed: Option<ModelProcess>,
}

/// What the API shows of a pod.
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
    /// The stage 0 that took the newest fence, while it lives.
    pub(crate) holder: Option<Name>,
    /// Where replicas may be missing: the attempt and the rank that took it.
    pub(crate) leader: Option<(u64, u32)>,
    /// Steps in the newest checkpoint.
    pub(crate) checkpoint: u64,
}

/// The operator's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelOperator {
    /// Something changed that it has not observed.
    pub(crate) has_unobserved_change: bool,
    /// When to reconcile again anyway.
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
    /// By UID: never a later pod of that name.
    Delete(Name),
}

/// A write of the job's status, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) state: JobState,
    pub(crate) starts_attempt: bool,
    pub(crate) resets_budget: bool,
    pub(crate) gives_back: bool,
    pub(crate) counted: bool,
    /// Where replicas may be missing: whether the first one was done.
    pub(crate) is_done: bool,
}

/// What a stale read returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StaleCache {
    Job(Box<JobObject>),
    Pods(Vec<ModelPod>),
}

/// How often each fault may happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// The operator crashes between two writes and loses its memory.
    pub(crate) crashes: u8,
    /// The operator reads a version of the job that was overwritten since.
    pub(crate) stale_reads: u8,
    /// A process fails, loses a peer, is killed, or is evicted; or pods are slower than a timeout.
    pub(crate) failures: u8,
    /// A node is partitioned from the API server.
    pub(crate) partitions: u8,
    /// The user suspends, resumes or scales.
    pub(crate) spec_changes: u8,
    /// The job's status is lost.
    pub(crate) status_losses: u8,
}

/// The past, as far as the invariants depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The highest number that was recorded.
    pub(crate) highest: u64,
    /// The highest that was recorded before the status was lost.
    pub(crate) highest_before_loss: u64,
    /// The pods that were last recorded as created.
    pub(crate) created: Vec<Name>,
    /// Restarts that counted, since a checkpoint was committed.
    pub(crate) counted: u32,
    /// The invariant that was violated; exploration ends there.
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

    /// For a change to a pod that exists.
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

    /// Replaces a state by the representative of those that no decision distinguishes.
    pub(crate) fn canonicalise(&mut self) {
        let number = self.job.recorded.attempt.number;
        let oldest = UnixMillis(NOW.0 - HORIZON_SECONDS * 1000);
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_alive()) {
            (pod.fenced, pod.is_survivor) = (false, false);
            if pod.is_reachable() {
                pod.deleted_at = pod.deleted_at.map(|_| oldest);
            }
        }
        self.volume.holder = self.volume.holder.filter(|name| self.pod(*name).is_some_and(ModelPod::is_alive));
        self.history.created.retain(|name| name.attempt == number);
        let groups = std::mem::take(&mut self.groups);
        let last = groups.len().saturating_sub(1);
        let is_member = |pod: &ModelPod, at: usize| {
            pod.process == ModelProcess::Ready && groups.iter().rposition(|group| group.has(pod)) == Some(at)
        };
        let is_kept = |at: usize| match at == last {
            true => self.of(groups[at].attempt).any(ModelPod::is_alive),
            false => self.may_lack_replicas() && self.pods.iter().any(|pod| is_member(pod, at)),
        };
        let kept: Vec<bool> = (0..groups.len()).map(is_kept).collect();
        self.groups = groups.into_iter().zip(kept).filter_map(|(group, is_kept)| is_kept.then_some(group)).collect();
        // How an older attempt ended, and whether its objects exist, matters only if a stale read shows it as the newest.
        if self.stale_cache.is_none() && self.remaining_faults.status_losses == 0 {
            let dead = |attempt| self.of(attempt).all(|pod| !pod.is_alive() && pod.is_reachable());
            let dead: Vec<_> = (1..number).filter(|attempt| dead(*attempt)).collect();
            self.pods.retain(|pod| !dead.contains(&pod.name.attempt) || pod.deleted_at.is_none());
            for pod in self.pods.iter_mut().filter(|pod| dead.contains(&pod.name.attempt)) {
                (pod.process, pod.unnoticed) = (ModelProcess::Ended(1), None);
                (pod.takes, pod.takeover_shows) = (None, false);
                pod.at = oldest;
            }
        }
        if self.job.recorded.outcome().is_some() {
            let Faults { crashes, stale_reads, .. } = self.remaining_faults;
            self.remaining_faults = Faults { crashes, stale_reads, ..Faults::default() };
        }
    }

    /// Advances time: everything else ages.
    pub(crate) fn advance_time(&mut self, time: UnixMillis) {
        let age = |at: &mut UnixMillis| {
            *at = UnixMillis(at.0.saturating_sub(time.0)).max(UnixMillis(NOW.0 - HORIZON_SECONDS * 1000))
        };
        let age_pods = |pods: &mut Vec<ModelPod>| {
            for pod in pods {
                age(&mut pod.at);
                pod.deleted_at.as_mut().into_iter().for_each(age);
            }
        };
        let age_job = |job: &mut JobObject| {
            if let AttemptPhase::Running { not_before, .. } = &mut job.recorded.attempt_phase {
                age(not_before);
            }
            job.recorded.last_failure.iter_mut().for_each(|failure| age(&mut failure.failed_at));
            job.recorded = canonical(job.recorded.clone());
        };
        age_pods(&mut self.pods);
        age_job(&mut self.job);
        match &mut self.stale_cache {
            Some(StaleCache::Pods(pods)) => age_pods(pods),
            Some(StaleCache::Job(job)) => age_job(job),
            None => {}
        }
    }
}

impl ModelPod {
    /// The stage that its process is, and its incarnation; a spare that waits is none.
    pub(crate) fn place(&self) -> Option<(u32, u32)> {
        let Name { rank, incarnation, .. } = self.name;
        if rank == SPARE { self.takes } else { Some((rank, incarnation)) }
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
        match (self.place().filter(|_| spare.is_none() || self.takeover_shows), spare) {
            (Some((rank, incarnation)), spare) => {
                let pod_conditions = Vec::new();
                Shown::Stage(StageInstance { rank, attempt, incarnation, spare, state, since, pod_conditions })
            }
            // until it shows that it has taken a place, it seems to wait as before
            (None, _) if self.takes.is_some() && matches!(state, InstanceState::Starting | InstanceState::Ready) => {
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

/// A state without what no decision depends on, so that more states are equal: counters, messages, and past times.
pub(crate) fn canonical(mut state: JobState) -> JobState {
    if let AttemptPhase::Running { not_before, .. } = &mut state.attempt_phase
        && *not_before <= NOW
    {
        *not_before = UnixMillis(0);
    }
    // what is known from the other stages alone is told with the exit
    let awaits_exit = |failure: &AttemptFailure| failure.reason == FailureReason::Killed && failure.exit_code.is_none();
    let is_over = state.outcome().is_some();
    let last_failure = state.last_failure.filter(|failure| awaits_exit(failure) && !is_over);
    JobState {
        budget: RestartBudget {
            counted_since_checkpoint: state.budget.counted_since_checkpoint,
            ..RestartBudget::default()
        },
        // the first restart is immediate, and the back-off is the same after each other one
        failures_without_progress: state.failures_without_progress.min(2),
        best_step: None,
        last_failure: last_failure.map(|failure| AttemptFailure { message: String::new(), ..failure }),
        started_at: state.started_at.map(|_| UnixMillis(0)),
        ..state
    }
}
