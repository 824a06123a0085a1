//! The response of stage 0 at `/status`. The response contains the stage's identity, so that a poller can't mistake
//! another attempt for its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::number::count;
use crate::job::{CheckpointStatus, ProgressStatus};

string_enum! {
    /// The phase of a stage.
    #[derive(Default)]
    pub enum StagePhase {
        /// Tokenising, planning, choosing the checkpoint.
        #[default]
        Preparing = "Preparing",
        /// A spare that is connected to the group, and waits to take the place of a lost stage.
        StandingBy = "StandingBy",
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

/// A stage to which another stage has lost its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostStage {
    /// The stage.
    pub stage: u32,
    /// The incarnation of the stage's pod in the attempt.
    pub incarnation: u32,
    /// Whether the stage's process has ended for sure, because its connections were closed.
    #[serde(default)]
    pub has_ended: bool,
}

/// A stage that has computed something wrong, or one of two stages of which one has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspectedStage {
    /// The stage.
    pub stage: u32,
    /// The incarnation of the stage's pod in the attempt.
    pub incarnation: u32,
}

/// The findings of audits in a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditStatus {
    /// A sentence for each of the last differences, the newest last.
    pub differences: Vec<String>,
    /// The suspects of the newest difference.
    pub suspects: Vec<SuspectedStage>,
}

/// The progress of a group, with its times. Times are milliseconds since 1970 by stage 0's clock; 0 means not yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The number of the group's fence. Each group has a higher number than all groups before it.
    pub fence: u64,
    /// The incarnation of each rank's pod or process, by rank; `None` for a rank that the group trains without.
    pub incarnations: Vec<Option<u32>>,
    /// The time at which all stages had joined.
    #[serde(deserialize_with = "count")]
    pub joined_at: u64,
    /// The time at which all stages had loaded.
    #[serde(deserialize_with = "count")]
    pub loaded_at: u64,
    /// The time at which the first step was finished.
    #[serde(deserialize_with = "count")]
    pub first_step_at: u64,
}

/// The answer of `/status`. Unknown fields are ignored, because the reader may be older than the writer.
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
    /// The stage; 0 for a spare that has no stage yet.
    pub stage: u32,
    /// The incarnation of this stage in this attempt.
    pub incarnation: u32,
    /// The number of a spare that has no stage yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare: Option<u32>,
    /// The stage's phase.
    pub phase: StagePhase,
    /// The activity of the stage, for people; empty if the phase says everything.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The stage that this stage has lost, as long as the group has not formed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostStage>,
    /// The number of the last fence that this stage took to lead a group; 0 if it took none. Among several stages, the
    /// stage with the highest number leads the group, or led the last one.
    #[serde(deserialize_with = "count")]
    pub leader_fence: u64,
    /// The group, from the time when it has joined until it is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupStatus>,
    /// The progress of training.
    pub progress: ProgressStatus,
    /// The newest committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The reason why the last checkpoint could not be saved; `None` as soon as a checkpoint is committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_failure: Option<String>,
    /// The differences between the environments in which the run was trained so far. With differences, the run's
    /// numbers may differ from those of a run in one environment. Empty if there are none, `None` if that isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_differences: Option<Vec<String>>,
    /// The findings of audits; `None` as long as nothing was audited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditStatus>,
    /// Counts the changes that are news; see [`StageStatus::is_news_after`]. 0 from a stage that does not count them.
    #[serde(deserialize_with = "count")]
    pub revision: u64,
}

impl StageStatus {
    /// Whether this status differs from `before` in more than progress, which a reader need not learn at once.
    pub fn is_news_after(&self, before: &StageStatus) -> bool {
        let without_progress = |status: &StageStatus| StageStatus {
            message: String::new(),
            progress: ProgressStatus::default(),
            revision: 0,
            ..status.clone()
        };
        without_progress(self) != without_progress(before)
    }
}

/// The query of `/status`. With a revision, the answer comes as soon as the status has another revision, or when the
/// time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusQuery {
    /// The revision that the reader knows.
    pub revision: Option<u64>,
    /// The time to wait for another revision: at most an hour.
    pub timeout_seconds: f64,
}

impl StatusQuery {
    /// Path and query of the request.
    pub fn path(&self) -> String {
        match self.revision {
            Some(revision) => format!("/status?revision={revision}&timeoutSeconds={}", self.timeout_seconds),
            None => "/status".to_owned(),
        }
    }

    /// The time to wait; an impossible time counts as 0.
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_seconds.min(3600.0)).unwrap_or_default()
    }
}
