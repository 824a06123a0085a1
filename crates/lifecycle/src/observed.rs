//! The input of `decide`: the desired state, the stored state and the existing instances.

use std::collections::BTreeSet;

use stagecoach_api::contract::{ExitCode, Mesh};

use crate::instance::{InstanceRef, InstanceState, SpareInstance, StageInstance};
use crate::{Attempt, FailurePolicy, JobState, UnixMillis};

/// One consistent observation of a job.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The desired state, from the spec.
    pub desired: Desired,
    /// The limits that the spec sets.
    pub policy: FailurePolicy,
    /// The stored state.
    pub state: JobState,
    /// Existing instances of all attempts. An instance that is not listed does not exist any more. The launcher lists
    /// exited processes only if they belong to the current attempt.
    pub instances: Vec<StageInstance>,
    /// Existing spares of all attempts, by the same rules as `instances`. A spare that was promoted to a stage is
    /// listed as an instance instead.
    pub spares: Vec<SpareInstance>,
    /// The refusal to create an instance of the current attempt, if any.
    pub refusal: Option<CreationRefusal>,
    /// The progress of training that the caller knows.
    pub progress: ObservedProgress,
}

/// A refusal to create an instance of the current attempt, for example by a quota or an admission controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreationRefusal {
    /// The time of the first refusal.
    pub since: UnixMillis,
    /// The message of the refusal, for the user.
    pub message: String,
}

/// The desired state, from the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Desired {
    /// The desired stages and replicas.
    pub mesh: Mesh,
    /// The hash of the spec fields that an attempt reads at its start. An attempt of another revision is drained: its
    /// stages save and exit.
    pub revision: u64,
    /// Whether the attempt must be drained and no further attempt may start: `spec.suspend`, or Ctrl-C.
    pub suspend: bool,
    /// Whether the job's queue admits the job.
    pub admission: Admission,
    /// The number of replicas that the queue admits. `None` if the queue admits all.
    pub admitted_replicas: Option<u32>,
}

/// Whether a job's queue admits the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Admission {
    /// The job has no queue.
    #[default]
    NotRequired,
    /// The job waits in its queue. A running attempt is drained, and no attempt starts.
    Waiting,
    /// The job is admitted. The number identifies the admission, because an attempt of another admission is drained.
    /// The number is never 0.
    Admitted(u64),
}

impl Desired {
    /// Whether an attempt may run.
    pub(crate) const fn may_run(&self) -> bool {
        !self.suspend && !matches!(self.admission, Admission::Waiting)
    }

    /// Whether `attempt` has the desired stages, replicas and revision, and runs under the current admission. The
    /// current admission may admit more replicas than the attempt has.
    pub(crate) fn is_of(&self, attempt: &Attempt) -> bool {
        let is_same =
            (self.mesh, self.revision, self.admission.id()) == (attempt.mesh, attempt.revision, attempt.admission);
        is_same && self.attempt(attempt.number).instances() >= attempt.instances()
    }

    /// Returns an attempt with this number and the desired stages, replicas, revision and admission.
    pub fn attempt(&self, number: u64) -> Attempt {
        let Desired { mesh, revision, admission, admitted_replicas, .. } = *self;
        Attempt { number, mesh, revision, admission: admission.id(), admitted_replicas }
    }
}

impl Admission {
    /// Returns the number that attempts under this admission store, or 0 without an admission.
    pub const fn id(self) -> u64 {
        match self {
            Admission::Admitted(id) => id,
            Admission::NotRequired | Admission::Waiting => 0,
        }
    }
}

/// The progress of training, from `/status`, termination messages or the volume. An unknown value is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObservedProgress {
    /// The step of the newest committed checkpoint.
    pub checkpoint_step: Option<u64>,
    /// The number of finished steps.
    pub finished_steps: Option<u64>,
    /// The time at which this attempt last finished a part of its preparation. The start-up timeout counts from this
    /// time.
    pub last_preparation_at: Option<UnixMillis>,
    /// Whether the leader should report its preparation but can't be reached. If so, the start-up timeout does not
    /// apply.
    pub is_unreachable: bool,
    /// The time at which this attempt last finished a step. With `None`, a stall is detected only once a stage is done.
    pub last_step_at: Option<UnixMillis>,
    /// The instance to which the other stages have lost their connection since the last group formed.
    pub lost: Option<LostInstance>,
}

/// An instance of the current attempt to which the other stages have lost their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostInstance {
    /// The rank of the instance.
    pub rank: u32,
    /// The incarnation of the instance.
    pub incarnation: u32,
    /// The time of the first report of the loss.
    pub since: UnixMillis,
    /// Whether the process has certainly ended: the kernel of its machine closed its connections.
    pub has_ended: bool,
}

impl Observed {
    /// Returns the instances and spares of all attempts.
    pub(crate) fn all_instances(&self) -> impl Iterator<Item = InstanceRef<'_>> + Clone {
        let stages = self.instances.iter().map(|StageInstance { attempt, state, since, .. }| (*attempt, state, *since));
        let spares = self.spares.iter().map(|SpareInstance { attempt, state, since, .. }| (*attempt, state, *since));
        stages.chain(spares).map(|(attempt, state, since)| InstanceRef { attempt, state, since })
    }

    /// Returns the instances of the current attempt, without replaced ones.
    pub(crate) fn current_instances(&self) -> impl Iterator<Item = &StageInstance> + Clone {
        self.instances.iter().filter(|instance| {
            instance.attempt == self.state.attempt.number
                && instance.incarnation == self.state.incarnation(instance.rank)
        })
    }

    /// Whether a current instance has exited before it was done. The next decision must react to such an exit.
    pub(crate) fn has_failed_instance(&self) -> bool {
        let mut exits = self.current_instances().filter_map(StageInstance::exit);
        exits.any(|exit| exit.contract_code() != Some(ExitCode::Done))
    }

    /// Whether a group may form without some of the replicas.
    pub(crate) fn may_lack_replicas(&self) -> bool {
        self.policy.replaces_stages && self.policy.min_data_parallel < self.state.attempt.mesh.data_parallel
    }

    /// Returns the number of replicas that train: the smallest number of ready instances of any stage. 0 if these
    /// replicas are too few to train.
    pub(crate) fn training_replicas(&self) -> u32 {
        let ready: BTreeSet<u32> = self
            .current_instances()
            .filter(|instance| instance.state == InstanceState::Ready)
            .map(|instance| instance.rank)
            .collect();
        let count = self.state.attempt.mesh.complete_replicas(|rank| ready.contains(&rank));
        let is_enough = count >= self.policy.min_data_parallel.min(self.state.attempt.mesh.data_parallel);
        if is_enough { count } else { 0 }
    }

    /// Whether the job may lack replicas and enough complete replicas are ready. If so, an instance outside these
    /// replicas can exit without interrupting the training.
    pub(crate) fn enough_replicas_train(&self) -> bool {
        self.may_lack_replicas() && self.training_replicas() > 0
    }

    /// Whether the job is elastic, and the instances of enough complete replicas are starting or ready. If so, the
    /// other replicas wait for resources without a deadline.
    pub(crate) fn has_scheduled_enough_replicas(&self) -> bool {
        let runs = |rank| {
            let is_scheduled = |instance: &StageInstance| {
                instance.rank == rank && matches!(instance.state, InstanceState::Starting | InstanceState::Ready)
            };
            self.current_instances().any(is_scheduled)
        };
        let mesh = self.state.attempt.mesh;
        self.policy.is_elastic && mesh.complete_replicas(runs) >= self.policy.min_data_parallel.min(mesh.data_parallel)
    }

    /// Returns the instances of the current attempt that were replaced.
    pub(crate) fn replaced_instances(&self) -> impl Iterator<Item = &StageInstance> {
        self.instances.iter().filter(|instance| {
            instance.attempt == self.state.attempt.number
                && instance.incarnation < self.state.incarnation(instance.rank)
        })
    }

    /// Returns the instance that the other stages have lost although it still seems to run, with the report of the
    /// loss.
    pub(crate) fn lost_instance(&self) -> Option<(&StageInstance, LostInstance)> {
        let lost = self.progress.lost.filter(|_| self.policy.replaces_stages)?;
        let is_lost = |instance: &&StageInstance| {
            (instance.rank, instance.incarnation) == (lost.rank, lost.incarnation)
                && matches!(instance.state, InstanceState::Starting | InstanceState::Ready)
        };
        Some((self.current_instances().find(is_lost)?, lost))
    }

    /// Returns the rank of a stage of the current attempt that is not created yet or is pending.
    pub(crate) fn unstarted_stage(&self, all_created: bool) -> Option<u32> {
        let pending = self.current_instances().find(|instance| instance.state.is_pending());
        let missing = self.missing_stages().next().filter(|_| !all_created);
        missing.or(pending.map(|instance| instance.rank))
    }

    /// Returns the ranks of the current attempt whose instance was created and does not exist any more.
    pub(crate) fn deleted_stages(&self, all_created: bool) -> impl Iterator<Item = u32> {
        let to_create = &self.state.ranks_to_create;
        // during a replacement, the ranks outside `ranks_to_create` were created earlier; while an attempt starts, no
        // rank is known to have been created
        let was_created = move |rank: &u32| all_created || !to_create.is_empty() && !to_create.contains(rank);
        self.missing_stages().filter(was_created)
    }

    /// Returns the ranks of the current attempt without an instance.
    pub(crate) fn missing_stages(&self) -> impl Iterator<Item = u32> {
        (0..self.state.attempt.instances())
            .filter(|rank| self.current_instances().all(|instance| instance.rank != *rank))
    }
}
