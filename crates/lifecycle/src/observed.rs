//! Input of `decide`: desired state, stored state, existing instances.

use std::collections::BTreeSet;

use stagecoach_api::contract::{ExitCode, FailureKind, Mesh, TerminationMessage};

use crate::{JobState, Policy, UnixMillis};

/// One consistent observation of a job.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What the spec asks for.
    pub desired: Desired,
    /// The limits that the spec sets.
    pub policy: Policy,
    /// The stored state.
    pub state: JobState,
    /// Existing instances of this attempt and of older ones. One that is not listed does not exist any more. The launcher
    /// lists exited processes of this attempt only.
    pub instances: Vec<StageInstance>,
    /// Existing spares, of this attempt and of older ones, listed as instances are. One that has taken a stage's place is an
    /// instance instead.
    pub spares: Vec<SpareInstance>,
    /// Why an instance of the current attempt can't be created, if it can't.
    pub refusal: Option<CreationRefusal>,
    /// Training progress as far as it is known.
    pub progress: ObservedProgress,
}

/// A stage, and which of its instances in an attempt it is: each has a higher incarnation than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId {
    /// Its rank.
    pub rank: u32,
    /// Its incarnation.
    pub incarnation: u32,
}

/// A refusal to create an instance of the current attempt: a quota, or admission.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreationRefusal {
    /// When the attempt's creation was first refused.
    pub since: UnixMillis,
    /// The refusal, for the user.
    pub message: String,
}

/// What the spec asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Desired {
    /// Stages and replicas.
    pub mesh: Mesh,
    /// Hash of the spec fields that an attempt reads at its start; an attempt of another revision is drained.
    pub revision: u64,
    /// Drain and start no further attempt: `spec.suspend`, or Ctrl-C.
    pub suspend: bool,
}

/// Training progress, from `/status`, termination messages or the volume. None where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObservedProgress {
    /// Step of the newest committed checkpoint.
    pub checkpoint_step: Option<u64>,
    /// Finished steps.
    pub finished_steps: Option<u64>,
    /// When this attempt last finished a piece of preparation; it extends the start-up deadline.
    pub last_preparation_at: Option<UnixMillis>,
    /// Whether stage 0 should report its preparation and can't be asked: then how long start-up takes is not judged.
    pub is_unreachable: bool,
    /// When this attempt last finished a step; None disables stall detection.
    pub last_step_at: Option<UnixMillis>,
    /// The instance that the other stages have lost last, since the group formed.
    pub lost: Option<LostInstance>,
}

/// An instance of the current attempt to which the other stages have lost their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostInstance {
    /// Its rank.
    pub rank: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// When that was first reported.
    pub since: UnixMillis,
    /// Whether its process has ended for sure: the kernel of its machine closed its connections.
    pub has_ended: bool,
}

/// A stage of an attempt: a process or a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageInstance {
    /// Its rank.
    pub rank: u32,
    /// The attempt.
    pub attempt: u64,
    /// An ordinal of this stage's instances in this attempt, which only grows: a newer instance has a higher one. Not a count.
    pub incarnation: u32,
    /// The number of the spare that it was before it took this stage's place.
    pub spare: Option<u32>,
    /// Its state.
    pub state: InstanceState,
    /// When it entered this state.
    pub since: UnixMillis,
    /// Types and statuses of the pod's conditions; a process has none.
    pub pod_conditions: Vec<(String, String)>,
}

/// A spare of an attempt: a process or a pod that has no stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpareInstance {
    /// Its number, of those of its attempt.
    pub number: u32,
    /// The attempt.
    pub attempt: u64,
    /// Its state; Ready if it stands by to take a stage's place.
    pub state: InstanceState,
    /// When it entered this state.
    pub since: UnixMillis,
}

/// The state of a stage instance or of a spare, in Kubernetes' terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// Somebody holds it back, such as a queue that has no room for it yet: no scheduler looks for a place.
    SchedulingGated,
    /// Not scheduled yet, or without its image.
    Pending,
    /// The process runs; rendezvous is not complete.
    Starting,
    /// Rendezvous is complete and weights are loaded.
    Ready,
    /// Termination was requested; `since` is the time of the request.
    Terminating,
    /// The process has exited.
    Exited(Exit),
}

/// How a process exited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The exit code; none if it is not known.
    pub code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// A cause outside the job.
    pub external_cause: Option<ExternalCause>,
    /// What the cluster says of it.
    pub message: Option<String>,
    /// Its termination message.
    pub termination: Option<TerminationReport>,
}

/// Causes outside the job, which the caller reads from the pod's conditions. None counts against the budget by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExternalCause {
    /// Preempted by a pod of higher priority.
    Preempted,
    /// Evicted, by a node's drain for example.
    Evicted,
    /// The node was lost.
    NodeLost,
    /// The node did not admit it: what it was scheduled for was taken meanwhile.
    NotAdmitted,
}

/// The part of a termination message that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TerminationReport {
    /// Kind of failure.
    pub kind: FailureKind,
    /// The step in progress.
    pub step: Option<u64>,
    /// The action in progress.
    pub action: Option<String>,
    /// A sentence for the user.
    pub message: String,
    /// Finished steps.
    pub finished_steps: Option<u64>,
    /// Step of the newest committed checkpoint that the stage knew of.
    pub checkpoint_step: Option<u64>,
}

impl From<&TerminationMessage> for TerminationReport {
    fn from(message: &TerminationMessage) -> Self {
        Self {
            kind: message.kind,
            step: message.step,
            action: message.action.clone(),
            message: message.message.clone(),
            finished_steps: message.progress.as_ref().map(|progress| progress.step),
            checkpoint_step: message.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        }
    }
}

impl Exit {
    /// An exit with a code and nothing else known.
    pub fn with_code(code: i32) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    /// An exit by a signal.
    pub fn with_signal(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::default() }
    }

    /// The code as a shell shows it: 128 + signal for a signal.
    pub fn shell_code(&self) -> Option<i32> {
        self.code.or_else(|| self.signal.map(|signal| 128 + signal))
    }

    /// The exit code's meaning in the contract of stages.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        self.shell_code().and_then(ExitCode::from_i32)
    }
}

impl InstanceState {
    /// Whether its process has not been started yet.
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending)
    }

    /// Whether it has no place in a group: it has not been started, or is starting.
    pub const fn is_unready(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending | Self::Starting)
    }

    /// Whether its process may still run.
    pub(crate) const fn is_alive(&self) -> bool {
        !matches!(self, Self::Exited(_))
    }

    /// Whether it still exists after its termination was requested.
    pub(crate) const fn is_terminating(&self) -> bool {
        matches!(self, Self::Terminating)
    }
}

/// What a stage's instance and a spare have in common.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) attempt: u64,
    pub(crate) state: &'a InstanceState,
    pub(crate) since: UnixMillis,
}

impl StageInstance {
    /// Whether its process may still run.
    pub(crate) const fn is_alive(&self) -> bool {
        self.state.is_alive()
    }

    /// Whether it still exists after its termination was requested.
    pub(crate) const fn is_terminating(&self) -> bool {
        self.state.is_terminating()
    }

    pub(crate) const fn exit(&self) -> Option<&Exit> {
        match &self.state {
            InstanceState::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

impl Observed {
    /// Instances and spares of all attempts.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member<'_>> + Clone {
        let stages = self.instances.iter().map(|StageInstance { attempt, state, since, .. }| (*attempt, state, *since));
        let spares = self.spares.iter().map(|SpareInstance { attempt, state, since, .. }| (*attempt, state, *since));
        stages.chain(spares).map(|(attempt, state, since)| Member { attempt, state, since })
    }

    /// Instances of the current attempt, without those that were replaced.
    pub(crate) fn current_instances(&self) -> impl Iterator<Item = &StageInstance> + Clone {
        self.instances.iter().filter(|instance| {
            instance.attempt == self.state.attempt.number
                && instance.incarnation == self.state.incarnation(instance.rank)
        })
    }

    /// Whether a current instance has ended before it was done: what follows is not decided yet.
    pub(crate) fn has_failed_instance(&self) -> bool {
        let mut exits = self.current_instances().filter_map(StageInstance::exit);
        exits.any(|exit| exit.exit_code() != Some(ExitCode::Done))
    }

    /// Whether a group may form without some of the replicas.
    pub(crate) fn may_lack_replicas(&self) -> bool {
        self.policy.min_data_parallel < self.state.attempt.mesh.data_parallel
    }

    /// How many replicas the ranks make that are as `is_there` says: as many as each stage has of them.
    pub(crate) fn replicas_of(&self, is_there: impl Fn(u32) -> bool) -> u32 {
        let mesh = self.state.attempt.mesh;
        let of_stage = |stage: u32| (0..mesh.ranks()).filter(move |rank| rank % mesh.stages == stage);
        (0..mesh.stages).map(|stage| of_stage(stage).filter(|&rank| is_there(rank)).count() as u32).min().unwrap_or(0)
    }

    /// How many replicas train: as many as each stage has instances that are ready, if they are enough for a group.
    pub(crate) fn training_replicas(&self) -> u32 {
        let ready: BTreeSet<u32> = self
            .current_instances()
            .filter(|instance| instance.state == InstanceState::Ready)
            .map(|instance| instance.rank)
            .collect();
        let count = self.replicas_of(|rank| ready.contains(&rank));
        let is_enough = count >= self.policy.min_data_parallel.min(self.state.attempt.mesh.data_parallel);
        if is_enough { count } else { 0 }
    }

    /// Whether replicas train, or would, without one that is missing: what else ends then has ended no group.
    pub(crate) fn trains_without_others(&self) -> bool {
        self.may_lack_replicas() && self.training_replicas() > 0
    }

    /// Instances of the current attempt that were replaced.
    pub(crate) fn replaced_instances(&self) -> impl Iterator<Item = &StageInstance> {
        self.instances.iter().filter(|instance| {
            instance.attempt == self.state.attempt.number
                && instance.incarnation < self.state.incarnation(instance.rank)
        })
    }

    /// The instance that the other stages have lost and that still seems to run, and what they report.
    pub(crate) fn lost_instance(&self) -> Option<(&StageInstance, LostInstance)> {
        let lost = self.progress.lost.filter(|_| self.policy.replaces_stages)?;
        let is_it = |instance: &&StageInstance| {
            (instance.rank, instance.incarnation) == (lost.rank, lost.incarnation)
                && matches!(instance.state, InstanceState::Starting | InstanceState::Ready)
        };
        Some((self.current_instances().find(is_it)?, lost))
    }

    /// A stage of the current attempt that the cluster has not started: it is not created yet, or is pending.
    pub(crate) fn unstarted_stage(&self, all_created: bool) -> Option<u32> {
        let pending = self.current_instances().find(|instance| instance.state.is_pending());
        let missing = self.missing_stages().next().filter(|_| !all_created);
        missing.or(pending.map(|instance| instance.rank))
    }

    /// Stages of the current attempt that were created and have no instance any more.
    pub(crate) fn deleted_stages(&self, all_created: bool) -> impl Iterator<Item = u32> {
        let starting = &self.state.starting;
        // until all were created it is known of those alone that are not started again
        let was_created = move |rank: &u32| all_created || !starting.is_empty() && !starting.contains(rank);
        self.missing_stages().filter(was_created)
    }

    /// Stages of the current attempt without an instance.
    pub(crate) fn missing_stages(&self) -> impl Iterator<Item = u32> {
        (0..self.state.attempt.mesh.ranks())
            .filter(|rank| self.current_instances().all(|instance| instance.rank != *rank))
    }
}
