//! The error that ends a stage: a kind for the restart policy, and a message for the user.

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::DataError;
use stagecoach_group::{AbortKind, GroupError};
use stagecoach_kernels::device::CudaError;
use stagecoach_os::PortableError;
use stagecoach_transport::LinkError;

use crate::execute::StepError;

/// An error that ends a stage.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StageError {
    /// The kind, which determines the exit code and the action of the restart policy.
    pub kind: FailureKind,
    /// The problem, its location, the expected state, and the remedy.
    pub message: String,
}

impl StageError {
    /// Creates an error of any kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> StageError {
        StageError { kind, message: message.into() }
    }

    /// Creates the error of an invalid job or plan.
    pub fn invalid(message: impl Into<String>) -> StageError {
        StageError::new(FailureKind::InvalidConfig, message)
    }

    /// Creates the error of a failed operation on the volume.
    pub fn storage(operation: &str, path: &std::path::Path, error: impl std::fmt::Display) -> StageError {
        StageError::new(FailureKind::Storage, format!("could not {operation} {}: {error}", path.display()))
    }
}

impl From<StepError> for StageError {
    fn from(error: StepError) -> StageError {
        let kind = match &error {
            StepError::Link(LinkError::Mismatch(_)) => FailureKind::Mismatch,
            StepError::Link(LinkError::Unavailable(_)) => FailureKind::InvalidConfig,
            StepError::Link(LinkError::Local(_) | LinkError::Unreachable(_))
            | StepError::Group(GroupError::Io { .. }) => FailureKind::Error,
            StepError::Link(LinkError::Broken(_)) | StepError::Group(_) => FailureKind::PeerLost,
            StepError::Aborted { kind: AbortKind::NonFinite, .. } => FailureKind::NonFinite,
            StepError::Aborted { kind: AbortKind::Mismatch, .. } => FailureKind::Mismatch,
            StepError::Link(LinkError::Device(_)) | StepError::Device(_) | StepError::InvalidProgram { .. } => {
                FailureKind::Error
            }
        };
        StageError::new(kind, error.to_string())
    }
}

impl From<LinkError> for StageError {
    fn from(error: LinkError) -> StageError {
        StepError::from(error).into()
    }
}

impl From<CudaError> for StageError {
    fn from(error: CudaError) -> StageError {
        StepError::from(error).into()
    }
}

impl From<GroupError> for StageError {
    fn from(error: GroupError) -> StageError {
        StepError::from(error).into()
    }
}

impl From<PortableError> for StageError {
    fn from(error: PortableError) -> StageError {
        StageError::invalid(error.to_string())
    }
}

impl From<DataError> for StageError {
    fn from(error: DataError) -> StageError {
        let kind = if error.is_storage() { FailureKind::Storage } else { FailureKind::InvalidConfig };
        StageError::new(kind, error.to_string())
    }
}

impl From<CheckpointError> for StageError {
    fn from(error: CheckpointError) -> StageError {
        let kind = match error {
            // a newer group of the job has taken over the checkpoints, and this stage must not write any more
            CheckpointError::FencedOff { by: None, .. } => FailureKind::PeerLost,
            CheckpointError::FencedOff { by: Some(_), .. }
            | CheckpointError::NoFolderRename { .. }
            | CheckpointError::OtherFileSystem { .. }
            | CheckpointError::NonFinite { .. }
            | CheckpointError::StepIsLink { .. } => FailureKind::InvalidConfig,
            _ => FailureKind::Storage,
        };
        StageError::new(kind, error.to_string())
    }
}
