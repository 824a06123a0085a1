//! `status`: the state of a job as the operator observes it. Every field has a default, and readers ignore unknown
//! fields, because a reader may be older than the writer. Measured values are strings. Times are RFC 3339 in UTC.

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
    /// The generation of the spec that the status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time at which the first attempt started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// The time at which the job completed or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
    /// A summary of the job's state, derived from the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    /// The number of stages that exist, over all replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// The number of stages of each replica, which the scale subresource compares with `spec.stages`. The field is
    /// unset if no stage exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages_per_replica: Option<u32>,
    /// The number of stages that are ready, over all replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_stages: Option<u32>,
    /// The number of replicas that train. It is 0 while the group needs more replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_replicas: Option<u32>,
    /// The pods' label selector, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The attempt that runs, or the last attempt if none runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,
    /// The progress of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// The newest committed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The numbers of restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartsStatus>,
    /// The root cause of the last failure. The stages that ended because of it are not included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailureStatus>,
    /// The last recovery that the leader has reported. Custom trainers may report none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_recovery: Option<RecoveryStatus>,
    /// The operator's internal state of the job, as JSON. Only the operator writes this field. `kubectl stagecoach why`
    /// reads it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "record")]
    pub record: Option<String>,
    /// The conditions of the job: Accepted, Admitted (only with a queue), Scheduled, Running, Progressing,
    /// CheckpointsHealthy, Reproducible, AuditsEqual, ObjectsInSync, Suspended, Complete, Failed, Ready, Reconciling
    /// and Stalled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Reads the record, which is a string with JSON. Earlier versions wrote an object, which this function converts to a
/// string.
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
        /// No attempt has started.
        #[default]
        Pending = "Pending",
        /// The stages start, and the group forms.
        Starting = "Starting",
        /// The stages of all replicas are ready, or of at least `restart.minDataParallel` replicas, in an elastic job
        /// `elastic.minDataParallel`.
        Running = "Running",
        /// The stages save a checkpoint and stop.
        Draining = "Draining",
        /// The job is stopped, because `spec.suspend` is true.
        Suspended = "Suspended",
        /// An attempt failed, and the next one has not started.
        Restarting = "Restarting",
        /// Training is complete.
        Complete = "Complete",
        /// The job has failed and does not restart.
        Failed = "Failed",
    }
}

impl JobPhase {
    /// Whether the job is complete or has failed, so that it has no further attempts.
    pub fn has_ended(self) -> bool {
        matches!(self, JobPhase::Complete | JobPhase::Failed)
    }
}

/// An attempt: one start of all stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptStatus {
    /// The number of the attempt, from 1. No two attempts of a job have the same number.
    #[serde(deserialize_with = "count")]
    pub number: u64,
    /// The generation of the spec that the attempt runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The number of stages of each replica.
    pub stages: u32,
    /// The number of replicas. The field is unset if there is only one replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<u32>,
    /// The image that the trainer's containers run, as the cluster resolved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whether all pods of the attempt have been created. A pod that is missing later was deleted.
    pub pods_created: bool,
}

impl AttemptStatus {
    /// Returns the numbers of stages and replicas of the attempt.
    pub fn mesh(&self) -> Mesh {
        Mesh { stages: self.stages, data_parallel: self.data_parallel.unwrap_or(1) }
    }
}

/// The progress of training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgressStatus {
    /// The number of finished steps.
    #[serde(deserialize_with = "count")]
    pub step: u64,
    /// The number of steps of the job.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub steps: Option<u64>,
    /// The training loss of the last step, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<FloatString>,
    /// The loss of the last evaluation on the held-out part, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<FloatString>,
    /// The lowest loss on the held-out part so far, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_evaluation_loss: Option<FloatString>,
    /// The step of the lowest loss on the held-out part.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub best_evaluation_step: Option<u64>,
    /// The number of target tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<FloatString>,
    /// The duration of a step, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_step: Option<FloatString>,
    /// The model FLOPs utilization, 0 to 1, on GPUs whose peak is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<FloatString>,
    /// The share of time in which the stages do not compute, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<FloatString>,
    /// The part of the bubble in which the next input of a stage was computed but had not arrived, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_communication: Option<FloatString>,
    /// The computation time of the slowest stage, divided by the mean of all stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<FloatString>,
    /// The estimated time to the end of training, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<FloatString>,
    /// The reason that training ended before its last step, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
    /// The time at which the progress was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// A committed checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// The number of steps that the checkpoint contains.
    #[serde(deserialize_with = "count")]
    pub step: u64,
    /// The number of stages that wrote the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// The number of the attempt that wrote the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_count")]
    pub attempt: Option<u64>,
    /// The time at which the checkpoint was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed_at: Option<String>,
}

/// The numbers of restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartsStatus {
    /// The number of all restarts.
    pub total: u32,
    /// The number of restarts that count against the budget.
    pub counted: u32,
    /// The number of restarts in which only the lost stages started again.
    pub replaced: u32,
    /// The number of counted restarts that remain before the job fails. The next committed checkpoint restores the
    /// budget.
    pub budget_left: u32,
}

/// The root cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastFailureStatus {
    /// The stage that failed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// The replica of the stage. The field is unset if there was only one replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// The name of the stage's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The reason of the failure, a CamelCase identifier.
    pub reason: String,
    /// The exit code of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The action of the schedule that the stage executed, in torch's text form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// A human-readable description of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of the stage's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
    /// The time at which the operator detected the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub at: Option<String>,
}

/// The duration of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoveryStatus {
    /// The number of the attempt that continued the training.
    #[serde(deserialize_with = "count")]
    pub attempt: u64,
    /// Whether only the lost stages started again.
    pub replaced: bool,
    /// The time from the failure to the first new step, in seconds.
    pub seconds: Option<FloatString>,
    /// The durations of the phases, in seconds. The phases follow one another.
    pub phases: RecoveryPhasesStatus,
}

/// The durations of a recovery's phases, in seconds. The phases follow one another. The operator measures the phases up
/// to `started` with its clock and the kubelet's times, which are whole seconds. The leader, which is stage 0 of one
/// replica, measures the later phases with its clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecoveryPhasesStatus {
    /// The time, in seconds, until the operator detected the failure.
    pub noticed: Option<FloatString>,
    /// The time, in seconds, until the operator decided to create new pods. It includes the back-off and the end of the
    /// old pods.
    pub decided: Option<FloatString>,
    /// The time, in seconds, until all pods existed.
    pub created: Option<FloatString>,
    /// The time, in seconds, until all trainers ran.
    pub started: Option<FloatString>,
    /// The time, in seconds, until all stages had joined the group.
    pub joined: Option<FloatString>,
    /// The time, in seconds, until all stages had loaded their state.
    pub loaded: Option<FloatString>,
    /// The time, in seconds, until the first step was finished.
    pub first_step: Option<FloatString>,
}
