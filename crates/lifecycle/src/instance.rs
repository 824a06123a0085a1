//! Instances of stages and spares: processes or pods, and their exits.

use stagecoach_api::contract::{ExitCode, FailureKind, TerminationMessage};

use crate::UnixMillis;

/// Identifies an instance of a stage in an attempt. Each instance has a higher incarnation than the earlier instances
/// of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId {
    /// The rank of the stage.
    pub rank: u32,
    /// The incarnation of the instance.
    pub incarnation: u32,
}

/// An instance of a stage in an attempt: a process or a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageInstance {
    /// The rank, which identifies a stage of one replica. In this crate, "stage" means one rank.
    pub rank: u32,
    /// The number of the attempt.
    pub attempt: u64,
    /// A number that is higher for each newer instance of this stage in this attempt. The number is not a count.
    pub incarnation: u32,
    /// The number of the spare that was promoted to this stage. `None` if the instance was created for the stage.
    pub spare: Option<u32>,
    /// The state of the instance.
    pub state: InstanceState,
    /// The time at which the instance entered this state.
    pub since: UnixMillis,
    /// The types and statuses of the pod's conditions. A process has none.
    pub pod_conditions: Vec<(String, String)>,
}

/// A spare of an attempt: a process or a pod without a stage, which waits to replace a lost stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpareInstance {
    /// The number of the spare, unique within its attempt.
    pub number: u32,
    /// The number of the attempt.
    pub attempt: u64,
    /// The state of the spare. A spare that can be promoted is Ready.
    pub state: InstanceState,
    /// The time at which the spare entered this state.
    pub since: UnixMillis,
}

/// The state of a stage instance or of a spare, in Kubernetes' terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// A controller, such as a queue, holds the pod back with a scheduling gate. The scheduler does not look for a
    /// node.
    SchedulingGated,
    /// The pod is not scheduled yet, or its image is not pulled yet.
    Pending,
    /// The process runs, and rendezvous is not complete.
    Starting,
    /// Rendezvous is complete and weights are loaded.
    Ready,
    /// The caller requested the termination. `since` is the time of the request.
    Terminating,
    /// The process has exited.
    Exited(Exit),
}

/// The exit of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The exit code, or `None` if it is unknown.
    pub code: Option<i32>,
    /// The signal that killed the process.
    pub signal: Option<i32>,
    /// The cause outside the job, if there is one.
    pub external_cause: Option<ExternalCause>,
    /// The cluster's message about the exit.
    pub message: Option<String>,
    /// The process's termination message.
    pub termination: Option<TerminationReport>,
}

/// Causes outside the job, which the caller reads from the pod's conditions. A failure with such a cause counts against
/// the budget only if a rule of `restart.podFailurePolicy` requires this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExternalCause {
    /// A pod of higher priority preempted the pod.
    Preempted,
    /// The pod was evicted, for example by a drain of its node.
    Evicted,
    /// The node was lost.
    NodeLost,
    /// The node did not admit the pod, because other pods had taken its resources.
    NotAdmitted,
}

/// The part of a termination message that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TerminationReport {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The step in progress.
    pub step: Option<u64>,
    /// The action in progress.
    pub action: Option<String>,
    /// A sentence about the failure for the user.
    pub message: String,
    /// The number of finished steps.
    pub finished_steps: Option<u64>,
    /// The step of the newest checkpoint that was committed before the stage ended.
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
    /// Returns an exit of which only the code is known.
    pub fn with_code(code: i32) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    /// Returns the code as a shell shows it. The code of a signal is 128 + signal.
    pub fn shell_code(&self) -> Option<i32> {
        self.code.or_else(|| self.signal.map(|signal| 128 + signal))
    }

    /// Returns the meaning of the exit code, as defined by the contract between a stage and its caller.
    pub(crate) fn contract_code(&self) -> Option<ExitCode> {
        self.shell_code().and_then(ExitCode::from_i32)
    }
}

impl InstanceState {
    /// Whether the process has not been started yet.
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending)
    }

    /// Whether the instance is in no group: its process has not been started, or is starting.
    pub const fn is_unready(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending | Self::Starting)
    }

    /// Whether the instance has not exited. An instance that was not started yet counts as alive.
    pub(crate) const fn is_alive(&self) -> bool {
        !matches!(self, Self::Exited(_))
    }

    /// Whether the instance still exists after its termination was requested.
    pub(crate) const fn is_terminating(&self) -> bool {
        matches!(self, Self::Terminating)
    }
}

/// The common attributes of a stage's instance and a spare.
#[derive(Clone, Copy)]
pub(crate) struct InstanceRef<'a> {
    pub(crate) attempt: u64,
    pub(crate) state: &'a InstanceState,
    pub(crate) since: UnixMillis,
}

impl StageInstance {
    /// Whether the process may still run.
    pub(crate) const fn is_alive(&self) -> bool {
        self.state.is_alive()
    }

    /// Whether the instance still exists after its termination was requested.
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
