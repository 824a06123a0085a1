//! The content of a stage's termination message: enough to find the root cause among N dead stages, and the last
//! progress, which survives the stage in this way.

use serde::{Deserialize, Serialize};

use super::ExitCode;
use crate::job::number::optional_count;
use crate::job::{CheckpointStatus, ProgressStatus};
use crate::visible;

/// Kubernetes keeps this many bytes of a termination message.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

string_enum! {
    /// The kind of a stage's failure.
    pub enum FailureKind {
        /// Trained to the end.
        Done = "Done",
        /// Asked to stop; a checkpoint is saved.
        Drained = "Drained",
        /// Invalid job or plan.
        InvalidConfig = "InvalidConfig",
        /// The corpus can't be read or is too small.
        Data = "Data",
        /// The volume failed, or no checkpoint on it is intact.
        Storage = "Storage",
        /// A peer or the coordinator was lost: collateral.
        PeerLost = "PeerLost",
        /// Too many steps in a row with a non-finite loss or norm.
        NonFinite = "NonFinite",
        /// The same plan gives different shapes, orders or hashes on two stages.
        Mismatch = "Mismatch",
        /// An audit found that this stage computed something wrong, or one of two of which this is one.
        WrongResult = "WrongResult",
        /// The stage did nothing for too long.
        Stalled = "Stalled",
        /// The group did not form in time.
        StartupTimeout = "StartupTimeout",
        /// Memory, on the host or the device.
        OutOfMemory = "OutOfMemory",
        /// Anything else.
        Error = "Error",
    }
}

impl FailureKind {
    /// Whether the same step would fail in the same way again, because the arithmetic is the same bit for bit.
    pub const fn is_deterministic(self) -> bool {
        matches!(self, Self::NonFinite | Self::Mismatch | Self::Data)
    }

    /// The exit code of this kind of failure.
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

/// The termination message of a stage. Unknown fields are ignored, because the reader may be older than the writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// The reason, a CamelCase identifier.
    pub kind: FailureKind,
    /// The stage.
    pub stage: u32,
    /// The step in progress.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub step: Option<u64>,
    /// The action in progress, in torch's text form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// A sentence.
    #[serde(default)]
    pub message: String,
    /// The last progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// The newest checkpoint this stage saw committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
}

impl TerminationMessage {
    /// A message with a kind, a stage and a text.
    pub fn new(kind: FailureKind, stage: u32, message: impl Into<String>) -> Self {
        Self { kind, stage, step: None, action: None, message: message.into(), progress: None, checkpoint: None }
    }

    /// One line of JSON of at most 4096 bytes. The message is shortened at a character boundary to fit.
    pub fn to_json(&self) -> String {
        let mut shortened = self.clone();
        loop {
            let json = serde_json::to_string(&shortened).unwrap_or_default();
            let Some(excess) = json.len().checked_sub(TERMINATION_MESSAGE_BYTES).filter(|excess| *excess > 0) else {
                return json;
            };
            // An escaped character takes up to six bytes, so several rounds may be needed. Each round shortens the
            // message.
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

    /// Reads a message, whose texts are made [`visible`]; `None` if the text isn't a message, since a custom trainer
    /// may write anything.
    pub fn from_json(text: &str) -> Option<Self> {
        let read: Self = serde_json::from_str(text).ok()?;
        let shown = |text: &str| visible(text).into_owned();
        let progress = read
            .progress
            .map(|progress| ProgressStatus { ended_early: progress.ended_early.as_deref().map(shown), ..progress });
        Some(Self { message: shown(&read.message), action: read.action.as_deref().map(shown), progress, ..read })
    }
}
