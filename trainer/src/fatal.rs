//! Why a stage gives up: one word for the policy that reads it, one sentence for people.

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::DataError;
use stagecoach_group::GroupError;

use crate::execute::StepError;
use crate::folder::FolderError;
use crate::links::LinkError;
use crate::observe::MetricsError;

/// The end of a stage, other than being done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fatal {
    /// Decides the exit code and what the restart policy makes of it.
    pub kind: FailureKind,
    /// What was found, where, what was expected, what to do.
    pub message: String,
}

impl Fatal {
    /// Of any kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Fatal {
        Fatal { kind, message: message.into() }
    }

    /// A job or plan that can't work.
    pub fn invalid(message: impl Into<String>) -> Fatal {
        Fatal::new(FailureKind::InvalidConfig, message)
    }

    /// The volume failed: what was being done, where, and what came back.
    pub fn storage(doing: &str, path: &std::path::Path, error: impl std::fmt::Display) -> Fatal {
        Fatal::new(FailureKind::Storage, format!("could not {doing} {}: {error}", path.display()))
    }
}

impl From<StepError> for Fatal {
    fn from(error: StepError) -> Fatal {
        let kind = match &error {
            StepError::Link(LinkError::Mismatch(_)) => FailureKind::Mismatch,
            StepError::Link(_) => FailureKind::PeerLost,
            StepError::Group(_) => FailureKind::PeerLost,
            StepError::Aborted(_) => FailureKind::NonFinite,
            StepError::InvalidProgram { .. } => FailureKind::Error,
        };
        Fatal::new(kind, error.to_string())
    }
}

impl From<LinkError> for Fatal {
    fn from(error: LinkError) -> Fatal {
        StepError::from(error).into()
    }
}

impl From<GroupError> for Fatal {
    fn from(error: GroupError) -> Fatal {
        StepError::from(error).into()
    }
}

impl From<DataError> for Fatal {
    fn from(error: DataError) -> Fatal {
        let kind = if error.is_storage() { FailureKind::Storage } else { FailureKind::InvalidConfig };
        Fatal::new(kind, error.to_string())
    }
}

impl From<FolderError> for Fatal {
    fn from(error: FolderError) -> Fatal {
        Fatal::new(error.kind(), error.to_string())
    }
}

impl From<MetricsError> for Fatal {
    fn from(error: MetricsError) -> Fatal {
        Fatal::new(FailureKind::Storage, error.to_string())
    }
}

impl From<CheckpointError> for Fatal {
    fn from(error: CheckpointError) -> Fatal {
        let kind = match error {
            CheckpointError::FencedOff { .. } => FailureKind::PeerLost, // a newer group has taken the job over
            _ => FailureKind::Storage,
        };
        Fatal::new(kind, error.to_string())
    }
}
