//! What stage 0 answers at `/status`. It echoes who it is, so that a poller can't take another attempt for its own.

use serde::{Deserialize, Serialize};

use crate::job::number::count;
use crate::job::{CheckpointStatus, ProgressStatus};

string_enum! {
    /// What a stage is doing.
    #[derive(Default)]
    pub enum StagePhase {
        /// Tokenising, planning, choosing the checkpoint.
        #[default]
        Preparing = "Preparing",
        /// Loading weights and opening links.
        Forming = "Forming",
        /// Training.
        Training = "Training",
        /// Saving, to leave.
        Draining = "Draining",
        /// Trained to the end.
        Done = "Done",
    }
}

/// The answer of `/status`. Unknown fields are tolerated: the reader may be older.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StageStatus {
    /// The job's UID.
    pub job_uid: String,
    /// The attempt.
    #[serde(deserialize_with = "count")]
    pub attempt: u64,
    /// The pod's UID.
    pub pod_uid: String,
    /// The stage.
    pub stage: u32,
    /// What it is doing.
    pub phase: StagePhase,
    /// What the stage is doing, for people; empty if the phase says it all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How far training is.
    pub progress: ProgressStatus,
    /// The newest committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Why the last checkpoint could not be saved; none as soon as one is committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_failure: Option<String>,
    /// In what the environments differed in which the run was trained so far, so that its numbers may be others than those of
    /// a run in one environment; empty if they did not, none if that isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_differences: Option<Vec<String>>,
}
