//! `status`: what the operator found. Everything has a default and unknown fields are tolerated, since an older reader
//! may meet a newer writer. Measured values are strings; times are RFC 3339 in UTC.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::number::{count, optional_count};
use super::{Condition, FloatString};
use crate::mesh::Mesh;

/// The observed state of a PipelineJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineJobStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the first attempt started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// When the job completed or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
    /// A summary of the job's state, derived from the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    /// Stages that exist, of all replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// Stages that exist, of each replica: in the unit of `spec.stages`, for the scale subresource. None if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages_per_replica: Option<u32>,
    /// Stages that are ready, of all replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_stages: Option<u32>,
    /// Replicas that train: those all of whose stages are ready. None while fewer are than a group needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_replicas: Option<u32>,
    /// The pods' label selector, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The attempt that runs, or the last that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,
    /// How far training is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// The newest committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Restarts so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartsStatus>,
    /// The root cause of the last failure, not the neighbours that it took down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailureStatus>,
    /// The last recovery from a failure that stage 0 has told of; none of a custom trainer that tells nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_recovery: Option<RecoveryStatus>,
    /// What the operator remembers from one decision to the next, as JSON. Nobody else should write it; `kubectl stagecoach why` reads it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "record")]
    pub record: Option<String>,
    /// Accepted, Scheduled, Running, Progressing, CheckpointsHealthy, Reproducible, AuditsEqual, ObjectsInSync, Suspended, Complete, Failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The record's JSON. Earlier versions wrote the object itself, each of whose fields `kubectl describe` gave a line.
fn record<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let record = Option::<Value>::deserialize(deserializer)?;
    Ok(record.map(|record| match record {
        Value::String(json) => json,
        object => object.to_string(),
    }))
}

string_enum! {
    /// A summary of a job's state.
    #[derive(Default)]
    pub enum JobPhase {
        /// Nothing was started yet.
        #[default]
        Pending = "Pending",
        /// Stages start and the group forms.
        Starting = "Starting",
        /// All stages are ready, or those of as many replicas as `restart.minDataParallel` says.
        Running = "Running",
        /// Stages were asked to save and leave.
        Draining = "Draining",
        /// Stopped on request.
        Suspended = "Suspended",
        /// An attempt failed and the next is due.
        Restarting = "Restarting",
        /// Trained to the end.
        Complete = "Complete",
        /// Given up.
        Failed = "Failed",
    }
}

/// An attempt of the whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptStatus {
    /// Counts from 1; never used twice.
    #[serde(deserialize_with = "count")]
    pub number: u64,
    /// The spec's generation that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Its stages, of each replica.
    pub stages: u32,
    /// Its replicas, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<u32>,
    /// The trainer's image, resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whether all its pods were created: one that is missing afterwards has vanished.
    pub pods_created: bool,
}

impl AttemptStatus {
    /// Its stages and replicas.
    pub fn mesh(&self) -> Mesh {
        Mesh { stages: self.stages, data_parallel: self.data_parallel.unwrap_or(1) }
    }
}

/// How far training is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgressStatus {
    /// Finished steps.
    #[serde(deserialize_with = "count")]
    pub step: u64,
    /// Steps in all.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub steps: Option<u64>,
    /// Training loss of the last step, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<FloatString>,
    /// Loss on the held-out part, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<FloatString>,
    /// The lowest loss on the held-out part so far, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_evaluation_loss: Option<FloatString>,
    /// The step after which it was measured.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub best_evaluation_step: Option<u64>,
    /// Target tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<FloatString>,
    /// Seconds of one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_step: Option<FloatString>,
    /// Model FLOPs utilization, 0 to 1: on GPUs whose peak is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<FloatString>,
    /// Share of the stages' time in which they did not compute, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<FloatString>,
    /// The part of the bubble in which a stage's next input had been computed elsewhere and had not arrived, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_communication: Option<FloatString>,
    /// Time of computation of the slowest stage over the mean of all stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<FloatString>,
    /// Seconds to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<FloatString>,
    /// A sentence: why training ended before its last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
    /// When this was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// A committed checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// Steps that are finished.
    #[serde(deserialize_with = "count")]
    pub step: u64,
    /// Stages that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// The attempt that wrote it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub attempt: Option<u64>,
    /// When it was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed_at: Option<String>,
}

/// Restarts so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartsStatus {
    /// All of them.
    pub total: u32,
    /// Those that count against the budget.
    pub counted: u32,
    /// Those in which only the stages that were lost started again.
    pub replaced: u32,
    /// Counted restarts still allowed until the next checkpoint.
    pub budget_left: u32,
}

/// The root cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastFailureStatus {
    /// The stage that failed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Its replica, if there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The reason, a CamelCase identifier.
    pub reason: String,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The schedule's action it was in, in torch's text form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// A sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
    /// When it was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub at: Option<String>,
}

/// What a recovery took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoveryStatus {
    /// The attempt that trained on.
    #[serde(deserialize_with = "count")]
    pub attempt: u64,
    /// Whether only the stages that were lost started again.
    pub replaced: bool,
    /// From the failure to the first new step, in seconds.
    pub seconds: Option<FloatString>,
    /// The same by phases.
    pub phases: RecoveryPhasesStatus,
}

/// The seconds of a recovery's phases, one after the other. Those up to `started` are by the operator's clock, and as exact as the
/// kubelet's times, which are whole seconds; the others by stage 0's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoveryPhasesStatus {
    /// Until the operator saw the failure.
    pub noticed: Option<FloatString>,
    /// Until it wanted new pods: the back-off, and pods that had to go first.
    pub decided: Option<FloatString>,
    /// Until all pods were there.
    pub created: Option<FloatString>,
    /// Until all trainers ran.
    pub started: Option<FloatString>,
    /// Until all stages had joined.
    pub joined: Option<FloatString>,
    /// Until all stages had loaded.
    pub loaded: Option<FloatString>,
    /// Until the first step was finished.
    pub first_step: Option<FloatString>,
}
