//! The error that ends a stage: a kind for the restart policy, a message for the user.

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::DataError;
use stagecoach_group::GroupError;
use stagecoach_kernels::device::CudaError;
use stagecoach_os::PortableError;
use stagecoach_transport::LinkError;

use crate::execute::StepError;

/// An error that ends a stage.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StageError {
    /// Determines the exit code, and the action of the restart policy.
    pub kind: FailureKind,
    /// The problem, its location, the expected state, and the remedy.
    pub message: String,
}

impl StageError {
    /// An error of any kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> StageError {
        StageError { kind, message: message.into() }
    }

    /// An invalid job or plan.
    pub fn invalid(message: impl Into<String>) -> StageError {
        StageError::new(FailureKind::InvalidConfig, message)
    }

    /// A failed operation on the volume.
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
            StepError::Aborted { is_non_finite: true, .. } => FailureKind::NonFinite,
            StepError::Aborted { is_non_finite: false, .. } => FailureKind::Mismatch,
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
            // fenced off by a newer group of the job
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

#[cfg(test)]
mod tests {
    use stagecoach_group::{BlockLosses, StepOutcome, StepRules, StepVote, Verdict, decide_step};

    use super::*;

    #[test]
    fn an_abort_is_non_finite_only_if_a_loss_or_gradient_was() {
        let vote = |step, loss| StepVote {
            step,
            losses: Some(BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, loss)] }),
            consecutive_skips: 9,
            all_finite: true,
            ..StepVote::default()
        };
        let kind = |votes: &[StepVote]| {
            let verdict: Verdict = decide_step(votes, &StepRules::default(), &|_| String::new());
            let StepOutcome::Abort { reason } = &verdict.outcome else { panic!("{verdict:?}") };
            StageError::from(StepError::aborted(reason, &verdict)).kind
        };
        assert_eq!(kind(&[vote(10, f64::NAN)]), FailureKind::NonFinite);
        assert_eq!(kind(&[vote(10, 1.0), vote(11, 1.0)]), FailureKind::Mismatch);
    }
}
