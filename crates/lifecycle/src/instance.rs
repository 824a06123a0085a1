//! Instances of stages and spares: processes or pods, and how they ended.

use stagecoach_api::contract::{ExitCode, FailureKind, TerminationMessage};

use crate::UnixMillis;

/// A stage, and which of its instances in an attempt it is: each has a higher incarnation than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId {
    /// Its rank.
    pub rank: u32,
    /// Its incarnation.
    pub incarnation: u32,
}

/// A stage of an attempt: a process or a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageInstance {
    /// Its rank: which stage of which replica it is. A stage in this crate is one rank.
    pub rank: u32,
    /// The attempt.
    pub attempt: u64,
    /// An ordinal of this stage's instances in this attempt, which only grows: a newer instance has a higher one. Not a
    /// count.
    pub incarnation: u32,
    /// The number of the spare that it was before it was promoted to this stage.
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
    /// Its state; Ready if it stands by to be promoted.
    pub state: InstanceState,
    /// When it entered this state.
    pub since: UnixMillis,
}

/// The state of a stage instance or of a spare, in Kubernetes' terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// Somebody holds it back, such as a queue that has no room for it yet: no scheduler looks for a node.
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

/// The exit of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The exit code; none if it is not known.
    pub code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// A cause outside the job.
    pub external_cause: Option<ExternalCause>,
    /// The cluster's message about it.
    pub message: Option<String>,
    /// Its termination message.
    pub termination: Option<TerminationReport>,
}

/// Causes outside the job, which the caller reads from the pod's conditions. They do not count against the budget by
/// themselves.
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
    pub(crate) fn contract_code(&self) -> Option<ExitCode> {
        self.shell_code().and_then(ExitCode::from_i32)
    }
}

impl InstanceState {
    /// Whether its process has not been started yet.
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending)
    }

    /// Whether it is in no group: it has not been started, or is starting.
    pub const fn is_unready(&self) -> bool {
        matches!(self, Self::SchedulingGated | Self::Pending | Self::Starting)
    }

    /// Whether it has not exited; one that was not started yet counts too.
    pub(crate) const fn is_alive(&self) -> bool {
        !matches!(self, Self::Exited(_))
    }

    /// Whether it still exists after its termination was requested.
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
