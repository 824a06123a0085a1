//! The events that stages, mostly the leader of the group, emit during a run. A pod logs an event as a line of text.
//! Under the launcher, a stage writes the event to stdout as a line of JSON.

mod run_summary;
mod step_record;

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::SuspectedStage;

pub use run_summary::{RunSummary, keep_audit_difference};
pub use step_record::{BestEvaluation, EvaluationRecord, StepRecord};

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TrainingEvent {
    /// A stage does work before the first step. `done` and `total` are 0 if the work isn't measured in bytes.
    Preparing {
        /// The activity, such as "tokenising".
        what: String,
        /// Bytes processed.
        done: u64,
        /// Bytes to process.
        total: u64,
    },
    /// The group, the stages' processes that train together, has formed, and training starts.
    Started(StartRecord),
    /// A step is complete.
    Step(StepRecord),
    /// A checkpoint was committed.
    Saved(SaveRecord),
    /// A checkpoint could not be committed. Older checkpoints are kept, and the next one is saved on schedule.
    SaveFailed(SaveRecord),
    /// Two stages have computed the same work item with different results.
    AuditDiffers(AuditDifference),
    /// A message for the user.
    Note {
        /// One sentence or more.
        message: String,
    },
    /// This stage has lost another stage and waits until the group forms again. Every stage emits this event, not only
    /// the leader.
    StageLost {
        /// The lost stage.
        stage: u32,
        /// The incarnation of the lost stage: the number of the stage's process in the attempt.
        incarnation: u32,
        /// Whether the stage's process has certainly ended.
        #[serde(default)]
        has_ended: bool,
        /// A description of how the stage was lost.
        message: String,
    },
    /// A spare, a process that waits beside the stages, is connected to the group and ready to replace a lost stage.
    StandingBy {
        /// The spare's number.
        spare: u32,
    },
    /// A spare replaces a stage whose process has ended.
    #[serde(rename = "tookPlace")]
    Promoted {
        /// The spare's number.
        spare: u32,
        /// The stage that the spare replaces.
        stage: u32,
        /// The stage's new incarnation.
        incarnation: u32,
    },
    /// Training is over and the model is saved.
    Finished(RunSummary),
}

/// The configuration of a run that starts, or resumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartRecord {
    /// The number of stages.
    pub stages: usize,
    /// The schedule's name.
    pub schedule: String,
    /// The number of layers of each chunk, a group of consecutive layers on one stage.
    pub partition: Vec<usize>,
    /// Microbatches per step.
    pub microbatches: usize,
    /// The first step to run, counted from 1.
    pub first_step: u64,
    /// The last step.
    pub steps: u64,
    /// The number of parameters. Tied parameters count once.
    pub parameters: u64,
    /// The number of tokens in the training split; `None` if the corpus is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The simulated bubble, 0 to 1, averaged over stages.
    pub expected_bubble: f64,
    /// Unigram entropy of the held-out tokens, in nats per token: the loss of a model that predicts by token
    /// frequencies alone.
    pub unigram_entropy: Option<f64>,
    /// The differences between the environments in which the run was trained so far. The list is empty if all numbers
    /// of the run are from one environment.
    #[serde(default)]
    pub environment_differences: Vec<String>,
    /// The differences that audits have found in the run so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_differences: Vec<String>,
    /// The incarnation of each of the job's ranks; `None` for a rank that the group trains without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incarnations: Vec<Option<u32>>,
}

/// The cost that a stage pays for checkpoints in memory, which are copies of its state at the next stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryCheckpointRecord {
    /// Seconds that training waited.
    pub stall_seconds: f64,
    /// Bytes sent to the next stage.
    pub bytes_sent: u64,
}

/// The audit of a work item (one chunk with one microbatch): a second stage has recomputed the item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// The step of the work item: one step before the step of the line in `metrics.jsonl`.
    pub step: u64,
    /// The stage that was audited.
    pub stage: u32,
    /// The chunk of the work item.
    pub chunk: usize,
    /// The microbatch of the work item, counted over the step.
    pub microbatch: usize,
    /// The stage that recomputed the work item.
    pub by: u32,
    /// Seconds that the recomputation took.
    pub seconds: f64,
    /// The difference between the results; `None` if every bit is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<AuditDifference>,
}

/// A difference found by an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditDifference {
    /// The stages that may compute wrong results. If the recomputations show which result is right, the list has only
    /// the stages with a different result.
    pub suspects: Vec<SuspectedStage>,
    /// A sentence that describes the difference.
    pub message: String,
}

/// The result of a save.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SaveRecord {
    /// The checkpoint's step.
    pub step: u64,
    /// The step at which the save was due: earlier than `step` if the previous save was still running.
    pub due: u64,
    /// Wall seconds from the snapshot to the commit.
    pub seconds: f64,
    /// The wall seconds during which the save stalled training.
    pub stall_seconds: f64,
    /// CPU seconds of all stages' checkpoint threads.
    pub cpu_seconds: f64,
    /// Size of the checkpoint, in bytes.
    pub bytes: u64,
    /// The error, if the save failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
