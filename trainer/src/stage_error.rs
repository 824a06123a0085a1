//! The error that ends a stage: a kind for the restart policy, a message for the user.

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::DataError;
use stagecoach_engine::execute::StepError;
use stagecoach_group::GroupError;
use stagecoach_kernels::device::CudaError;
use stagecoach_launcher::FolderError;
use stagecoach_os::PortableError;
use stagecoach_telemetry::MetricsError;
use stagecoach_transport::LinkError;

/// An error that ends a stage.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StageError {
    /// Determines the exit code, and the action of the restart policy.
    pub kind: FailureKind,
    /// The problem, its location, the expected state, and the remedy.
    pub message: String,
    /// Whether the group has lost another stage, so that this one may join the next group.
    pub is_group_lost: bool,
    /// Whether the group trained to the end without this stage, so that it has nothing left to do.
    pub is_not_needed: bool,
}

impl StageError {
    /// An error of any kind.
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> StageError {
        StageError { kind, message: message.into(), is_group_lost: false, is_not_needed: false }
    }

    /// An invalid job or plan.
    pub(crate) fn invalid(message: impl Into<String>) -> StageError {
        StageError::new(FailureKind::InvalidConfig, message)
    }

    /// A failed operation on the volume.
    pub(crate) fn storage(operation: &str, path: &std::path::Path, error: impl std::fmt::Display) -> StageError {
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
        let is_group_lost =
            matches!(error, StepError::Link(LinkError::Broken(_)) | StepError::Group(GroupError::GroupFailed(_)));
        let is_not_needed = matches!(error, StepError::Group(GroupError::AllLeft { .. }));
        StageError { is_group_lost, is_not_needed, ..StageError::new(kind, error.to_string()) }
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

impl From<FolderError> for StageError {
    fn from(error: FolderError) -> StageError {
        StageError::new(error.kind(), error.to_string())
    }
}

impl From<MetricsError> for StageError {
    fn from(error: MetricsError) -> StageError {
        StageError::new(FailureKind::Storage, error.to_string())
    }
}

impl From<CheckpointError> for StageError {
    fn from(error: CheckpointError) -> StageError {
        // fenced off by a newer group of the job
        let is_group_lost = matches!(error, CheckpointError::FencedOff { by: None, .. });
        let kind = match error {
            CheckpointError::FencedOff { by: None, .. } => FailureKind::PeerLost,
            CheckpointError::FencedOff { by: Some(_), .. }
            | CheckpointError::NoFolderRename { .. }
            | CheckpointError::OtherFileSystem { .. }
            | CheckpointError::NonFinite { .. }
            | CheckpointError::StepIsLink { .. } => FailureKind::InvalidConfig,
            _ => FailureKind::Storage,
        };
        StageError { is_group_lost, ..StageError::new(kind, error.to_string()) }
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
