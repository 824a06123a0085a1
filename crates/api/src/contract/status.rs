//! The response of a stage at `/status`. The response contains the job's UID, the attempt and the pod's UID, so that a
//! client can ignore the response of another job, attempt or pod.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::number::count;
use crate::job::{CheckpointStatus, ProgressStatus};

string_enum! {
    /// The phase of a stage.
    #[derive(Default)]
    pub enum StagePhase {
        /// The stage prepares: it tokenises the corpus, makes the plan or chooses the checkpoint.
        #[default]
        Preparing = "Preparing",
        /// The spare is connected to the group, and waits to replace a lost stage.
        StandingBy = "StandingBy",
        /// The stage loads weights and opens links.
        Forming = "Forming",
        /// The stage trains.
        Training = "Training",
        /// The stage saves a checkpoint before it exits.
        Draining = "Draining",
        /// Training is complete.
        Done = "Done",
    }
}

/// A stage that the responding stage has lost, because the connection between the two stages was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostStage {
    /// The stage's rank.
    pub stage: u32,
    /// The incarnation: see [`env::INCARNATION`](super::env::INCARNATION).
    pub incarnation: u32,
    /// Whether the operating system closed the stage's connections, which shows that the stage's process has ended.
    #[serde(default)]
    pub has_ended: bool,
}

/// A stage that an audit suspects of a wrong result. If the audit does not show which stage computed the result, each
/// stage that may have computed it is a suspect. In an audit, another stage recomputes a microbatch and compares the
/// results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspectedStage {
    /// The stage's rank.
    pub stage: u32,
    /// The incarnation: see [`env::INCARNATION`](super::env::INCARNATION).
    pub incarnation: u32,
}

/// The findings of the audits so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditStatus {
    /// One sentence for each of the latest differences that audits found, the newest last.
    pub differences: Vec<String>,
    /// The suspects of the newest difference.
    pub suspects: Vec<SuspectedStage>,
}

/// A group, which is a set of stages that train together: its fence, its members and the times of its start. Each time
/// is in milliseconds since 1970, by the clock of the responding stage. A time is 0 until its event happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The number of the group's fence. The fence is the right to commit checkpoints of the job. Each group has a
    /// higher number than all groups before it.
    pub fence: u64,
    /// The incarnation of each rank's pod or process, by rank. The entry of a rank is `None` if the group trains
    /// without this rank.
    pub incarnations: Vec<Option<u32>>,
    /// The time at which all members had joined.
    #[serde(deserialize_with = "count")]
    pub joined_at: u64,
    /// The time at which all members had loaded their weights and optimizer state.
    #[serde(deserialize_with = "count")]
    pub loaded_at: u64,
    /// The time at which the first step was finished.
    #[serde(deserialize_with = "count")]
    pub first_step_at: u64,
}

/// The response of `/status`. A reader ignores unknown fields, because it may be older than the writer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StageStatus {
    /// The job's UID.
    pub job_uid: String,
    /// The number of the attempt.
    #[serde(deserialize_with = "count")]
    pub attempt: u64,
    /// The pod's UID.
    pub pod_uid: String,
    /// The stage's rank. 0 for a spare that has no stage yet.
    pub stage: u32,
    /// The incarnation: see [`env::INCARNATION`](super::env::INCARNATION).
    pub incarnation: u32,
    /// The number of a spare that has no stage yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare: Option<u32>,
    /// The stage's phase.
    pub phase: StagePhase,
    /// The current activity of the stage, for people. Empty if the phase already describes the activity.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The stage to which this stage lost its connection. `None` after the next group has formed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostStage>,
    /// The number of the newest fence that this stage acquired as the leader of a group, or 0 if it never led a group.
    /// The stage with the highest number is the leader of the current or the last group.
    #[serde(deserialize_with = "count")]
    pub leader_fence: u64,
    /// The group of this stage. `None` before all members join, and after the group loses a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupStatus>,
    /// The progress of training.
    pub progress: ProgressStatus,
    /// The newest committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The reason why the last checkpoint could not be saved. `None` after the next committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_failure: Option<String>,
    /// The differences in the hardware and software on which the run has trained. If there are any, the results may
    /// differ from the results of a run on equal hardware and software. Empty if there is no difference, and `None` if
    /// the stage does not know the differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_differences: Option<Vec<String>>,
    /// The findings of audits. `None` before the first audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditStatus>,
    /// The number of changes for which [`StageStatus::is_news_after`] was true. 0 if the stage does not count these
    /// changes.
    #[serde(deserialize_with = "count")]
    pub revision: u64,
}

impl StageStatus {
    /// Whether this status differs from `before` in a field other than `progress`, `message` and `revision`. A client
    /// that waits for news does not need to receive new progress at once.
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

/// The query of `/status`. If the query has a revision, the stage delays its response until the status has another
/// revision or the timeout expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusQuery {
    /// The revision of the status that the client already has.
    pub revision: Option<u64>,
    /// The longest delay of the response, in seconds. A value above 3600 counts as 3600.
    pub timeout_seconds: f64,
}

impl StatusQuery {
    /// Returns the path and the query of the HTTP request.
    pub fn path(&self) -> String {
        match self.revision {
            Some(revision) => format!("/status?revision={revision}&timeoutSeconds={}", self.timeout_seconds),
            None => "/status".to_owned(),
        }
    }

    /// Returns the longest delay of the response. A negative value counts as 0.
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_seconds.min(3600.0)).unwrap_or_default()
    }
}
