//! What the caller sees: what is wanted, what was recorded, and which members there are.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::{ExitCode, FailureKind, TerminationMessage};

use crate::{Policy, State, Time};

/// One consistent look at a job.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What the user wants.
    pub desired: Desired,
    /// The limits that the spec sets.
    pub policy: Policy,
    /// What was recorded last.
    pub state: State,
    /// Members of this attempt and of older ones, as far as they exist. One that is not listed is gone. The launcher
    /// lists the exited processes of this attempt only.
    pub members: Vec<Member>,
    /// How far training is known to be.
    pub seen: Seen,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Desired {
    /// Stages.
    pub stages: u32,
    /// Changes with everything that a running attempt can't adopt; an attempt of another revision is drained.
    pub revision: u64,
    /// Save, leave and stay away: `spec.suspend`, or Ctrl-C.
    pub suspend: bool,
}

/// How far training is known to be, from `/status`, termination messages or the volume. What isn't known is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Step of the newest committed checkpoint.
    pub checkpoint: Option<u64>,
    /// Finished steps.
    pub step: Option<u64>,
    /// When this attempt last finished a piece of preparation; it extends the start-up deadline.
    pub prepared: Option<Time>,
    /// When this attempt last finished a step. None turns the watch over stalls off.
    pub progressed: Option<Time>,
}

/// A stage of an attempt: a process or a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The stage.
    pub stage: u32,
    /// The attempt.
    pub attempt: u64,
    /// What it is doing.
    pub state: MemberState,
    /// Since when.
    pub at: Time,
}

/// What a member is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Without a place to run, or without its image.
    Pending,
    /// Its process runs; the group has not formed.
    Starting,
    /// The group has formed and weights are loaded.
    Ready,
    /// Asked to leave and still there; since the asking, whoever asked.
    Terminating,
    /// Its process has ended.
    Exited(Exit),
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The exit code; none if it is not known.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// A cause outside of the job.
    pub external: Option<External>,
    /// What its termination message says.
    pub report: Option<Report>,
}

/// Causes outside of the job, which the caller reads off the pod. None of them counts against the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum External {
    /// A pod of higher priority took its place.
    Preempted,
    /// Evicted, by a node's drain for example.
    Evicted,
    /// The node is gone.
    NodeLost,
}

/// What decides something in a termination message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Why, in one word.
    pub kind: FailureKind,
    /// The step in progress.
    pub step: Option<u64>,
    /// The action in progress.
    pub action: Option<String>,
    /// A sentence.
    pub message: String,
    /// Finished steps.
    pub progress: Option<u64>,
    /// Step of the newest committed checkpoint it knew of.
    pub checkpoint: Option<u64>,
}

impl From<&TerminationMessage> for Report {
    fn from(message: &TerminationMessage) -> Self {
        Self {
            kind: message.kind,
            step: message.step,
            action: message.action.clone(),
            message: message.message.clone(),
            progress: message.progress.as_ref().map(|progress| progress.step),
            checkpoint: message.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        }
    }
}

impl Exit {
    /// An exit with a code and nothing else known.
    pub fn with_code(code: i32) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    /// An end by a signal.
    pub fn with_signal(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::default() }
    }

    /// The code as a shell shows it: 128 + signal for a signal.
    pub fn shell_code(&self) -> Option<i32> {
        self.code.or_else(|| self.signal.map(|signal| 128 + signal))
    }

    /// What the contract calls the code.
    pub(crate) fn meaning(&self) -> Option<ExitCode> {
        self.shell_code().and_then(ExitCode::from_i32)
    }
}

impl Member {
    /// Whether its process may still do something.
    pub(crate) const fn is_alive(&self) -> bool {
        !matches!(self.state, MemberState::Exited(_))
    }

    /// Whether it is still there after it was asked to leave.
    pub(crate) const fn is_leaving(&self) -> bool {
        matches!(self.state, MemberState::Terminating)
    }

    pub(crate) const fn exit(&self) -> Option<&Exit> {
        match &self.state {
            MemberState::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

impl Observed {
    /// Members of the recorded attempt.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Member> + Clone {
        self.members.iter().filter(|member| member.attempt == self.state.attempt.number)
    }

    /// Stages of the recorded attempt that have no member. After all were created, these have vanished.
    pub(crate) fn missing(&self) -> impl Iterator<Item = u32> {
        (0..self.state.attempt.stages).filter(|stage| self.current().all(|member| member.stage != *stage))
    }
}
