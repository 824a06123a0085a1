//! The reasons for which a stage leaves its group early.

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::DataError;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::StepError;
use stagecoach_group::GroupError;
use stagecoach_kernels::device::CudaError;
use stagecoach_launcher::FolderError;
use stagecoach_telemetry::MetricsError;
use stagecoach_transport::LinkError;

/// The reason why a stage leaves its group before the end of training, or joins no group.
#[derive(Clone, Debug)]
pub(in crate::train) enum LeaveReason {
    /// The group has lost another stage, and this stage may join the next group.
    GroupLost(StageError),
    /// The group trained to the end without this stage, and the stage has nothing left to do.
    NotNeeded,
    /// An error that ends this stage.
    Failed(StageError),
}

impl LeaveReason {
    /// Returns the failure kind. The kind determines the exit code, which reports the cause to the other stages.
    pub(in crate::train) fn kind(&self) -> FailureKind {
        match self {
            LeaveReason::GroupLost(error) | LeaveReason::Failed(error) => error.kind,
            LeaveReason::NotNeeded => FailureKind::Done,
        }
    }

    /// Converts a reason that occurs before the leader has released the plan to the group. A lost group becomes a
    /// failure, because the loss would recur in another group.
    pub(in crate::train) fn before_release(self) -> LeaveReason {
        match self {
            LeaveReason::GroupLost(error) => LeaveReason::Failed(error),
            LeaveReason::NotNeeded | LeaveReason::Failed(_) => self,
        }
    }
}

impl From<StageError> for LeaveReason {
    fn from(error: StageError) -> LeaveReason {
        LeaveReason::Failed(error)
    }
}

impl From<StepError> for LeaveReason {
    fn from(error: StepError) -> LeaveReason {
        match error {
            StepError::Group(GroupError::AllLeft { .. }) => LeaveReason::NotNeeded,
            StepError::Link(LinkError::Broken(_)) | StepError::Group(GroupError::GroupFailed(_)) => {
                LeaveReason::GroupLost(error.into())
            }
            _ => LeaveReason::Failed(error.into()),
        }
    }
}

impl From<LinkError> for LeaveReason {
    fn from(error: LinkError) -> LeaveReason {
        StepError::from(error).into()
    }
}

impl From<GroupError> for LeaveReason {
    fn from(error: GroupError) -> LeaveReason {
        StepError::from(error).into()
    }
}

impl From<CheckpointError> for LeaveReason {
    fn from(error: CheckpointError) -> LeaveReason {
        match error {
            // a newer group of the job holds the fence, which is the right to commit checkpoints
            CheckpointError::FencedOff { by: None, .. } => LeaveReason::GroupLost(error.into()),
            _ => LeaveReason::Failed(error.into()),
        }
    }
}

impl From<CudaError> for LeaveReason {
    fn from(error: CudaError) -> LeaveReason {
        LeaveReason::Failed(error.into())
    }
}

impl From<DataError> for LeaveReason {
    fn from(error: DataError) -> LeaveReason {
        LeaveReason::Failed(error.into())
    }
}

/// Converts an error of the job's folder into the error that ends the stage.
pub(in crate::train) fn folder_error(error: FolderError) -> StageError {
    StageError::new(error.kind(), error.to_string())
}

impl From<FolderError> for LeaveReason {
    fn from(error: FolderError) -> LeaveReason {
        LeaveReason::Failed(folder_error(error))
    }
}

impl From<MetricsError> for LeaveReason {
    fn from(error: MetricsError) -> LeaveReason {
        LeaveReason::Failed(StageError::new(FailureKind::Storage, error.to_string()))
    }
}
