//! The exit code and the termination message of a stage. The message identifies the root cause when several stages
//! exit, and preserves the stage's last progress after the process has ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::number::optional_count;
use crate::job::{CheckpointStatus, ProgressStatus};
use crate::visible;

/// The exit code of a stage. The numbers are those of sysexits.h, or 128 plus the number of a signal as in a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCode {
    /// Training is complete.
    Done = 0,
    /// Any failure for which this list has no other code.
    Failure = 1,
    /// The volume failed, or no checkpoint on it is intact.
    Storage = 74,
    /// The stage lost its connection to another stage or to the coordinator. The root cause is in another process.
    PeerLost = 75,
    /// The job or its plan is invalid. A restart would fail in the same way.
    InvalidConfig = 78,
    /// SIGKILL ended the stage, because it ran out of memory or its grace period was over.
    Killed = 137,
    /// The stage received SIGTERM, saved a checkpoint and exited.
    Drained = 143,
}

impl ExitCode {
    /// All exit codes.
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Failure, Self::Storage, Self::PeerLost, Self::InvalidConfig, Self::Killed, Self::Drained];

    /// Returns the number that the process gives the operating system.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// Returns the exit code with this number, or `None` for a number that no variant has.
    pub fn from_i32(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self {
            Self::Done => "done",
            Self::Failure => "failed",
            Self::Storage => "storage failed",
            Self::PeerLost => "lost a peer",
            Self::InvalidConfig => "invalid configuration",
            Self::Killed => "killed",
            Self::Drained => "drained",
        };
        write!(f, "{} ({meaning})", self.code())
    }
}

/// The length, in bytes, to which Kubernetes truncates a termination message.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

string_enum! {
    /// The kind of a stage's failure.
    pub enum FailureKind {
        /// Training is complete.
        Done = "Done",
        /// The stage was asked to stop, saved a checkpoint and exited.
        Drained = "Drained",
        /// The job or its plan is invalid.
        InvalidConfig = "InvalidConfig",
        /// The corpus can't be read or is too small.
        Data = "Data",
        /// The volume failed, or no checkpoint on it is intact.
        Storage = "Storage",
        /// The stage lost its connection to another stage or to the coordinator. The root cause is in another process.
        PeerLost = "PeerLost",
        /// Too many consecutive steps had a loss or gradient norm that was not finite.
        NonFinite = "NonFinite",
        /// Two stages derived different shapes, orders or hashes from the same plan.
        Mismatch = "Mismatch",
        /// An audit found that this stage, or one of two stages including this one, computed a wrong result.
        WrongResult = "WrongResult",
        /// The stage finished no action before the stall timeout expired.
        Stalled = "Stalled",
        /// The group did not form in time.
        StartupTimeout = "StartupTimeout",
        /// The stage ran out of memory, on the host or the device.
        OutOfMemory = "OutOfMemory",
        /// Any other failure.
        Error = "Error",
    }
}

impl FailureKind {
    /// Whether a restart would fail in the same way at the same step, because the arithmetic is the same bit for bit.
    pub const fn is_deterministic(self) -> bool {
        matches!(self, Self::NonFinite | Self::Mismatch | Self::Data)
    }

    /// Returns the exit code of a stage that fails in this way.
    pub const fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::Done,
            Self::Drained => ExitCode::Drained,
            Self::InvalidConfig => ExitCode::InvalidConfig,
            Self::Storage => ExitCode::Storage,
            Self::PeerLost => ExitCode::PeerLost,
            _ => ExitCode::Failure,
        }
    }
}

/// The termination message of a stage. A reader ignores unknown fields, because it may be older than the writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// The kind of the failure, a CamelCase identifier.
    pub kind: FailureKind,
    /// The stage's rank.
    pub stage: u32,
    /// The step that was in progress when the stage ended.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub step: Option<u64>,
    /// The action of the pipeline schedule that was in progress when the stage ended, in PyTorch's text form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// A sentence for people about the failure.
    #[serde(default)]
    pub message: String,
    /// The progress of training at the end of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// The newest checkpoint that was committed before the stage ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
}

impl TerminationMessage {
    /// Creates a message with a kind, a stage and a text. All other fields are absent.
    pub fn new(kind: FailureKind, stage: u32, message: impl Into<String>) -> Self {
        Self { kind, stage, step: None, action: None, message: message.into(), progress: None, checkpoint: None }
    }

    /// Returns the message as one line of JSON of at most 4096 bytes. If the JSON is longer, the function cuts
    /// `message` at a character boundary. If even an empty `message` is not enough, only `kind` and `stage` remain.
    pub fn to_json(&self) -> String {
        let mut shortened = self.clone();
        loop {
            let json = serde_json::to_string(&shortened).unwrap_or_default();
            let Some(excess) = json.len().checked_sub(TERMINATION_MESSAGE_BYTES).filter(|excess| *excess > 0) else {
                return json;
            };
            // JSON escapes a byte of the text as up to six bytes, so it may be enough to remove `excess / 6` bytes.
            // Otherwise the next iteration shortens the text again.
            let text = shortened.message.trim_end_matches("...");
            if text.is_empty() {
                shortened = Self::new(self.kind, self.stage, "");
                continue;
            }
            let longest = text.len().saturating_sub(excess / 6 + 4);
            let kept: String =
                text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= longest).map(|(_, c)| c).collect();
            shortened.message = if kept.is_empty() { kept } else { kept + "..." };
        }
    }

    /// Reads a termination message, and makes the invisible characters of its texts [`visible`]. Returns `None` for any
    /// other text, because a custom trainer may write any text.
    pub fn from_json(text: &str) -> Option<Self> {
        let read: Self = serde_json::from_str(text).ok()?;
        let shown = |text: &str| visible(text).into_owned();
        let progress = read
            .progress
            .map(|progress| ProgressStatus { ended_early: progress.ended_early.as_deref().map(shown), ..progress });
        Some(Self { message: shown(&read.message), action: read.action.as_deref().map(shown), progress, ..read })
    }
}
