//! The events that stages, mostly stage 0, emit during a run: log lines in a pod, JSON lines on stdout under the
//! launcher.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::SuspectedStage;

use super::TimelineRecord;
use crate::Receipt;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TrainingEvent {
    /// Work before the first step: `done` of `total` bytes of the corpus (both 0 if it isn't measured in bytes).
    Preparing {
        /// The activity, such as "tokenising".
        what: String,
        /// Bytes processed.
        done: u64,
        /// Bytes to process.
        total: u64,
    },
    /// The group has formed and training starts.
    Started(StartRecord),
    /// A step is complete.
    Step(StepRecord),
    /// A checkpoint was committed.
    Saved(SaveRecord),
    /// A checkpoint could not be committed; older ones are kept, and the next one is saved on schedule.
    SaveFailed(SaveRecord),
    /// Two stages have computed the same work item with different results.
    AuditDiffers(AuditDifference),
    /// A message for the user.
    Note {
        /// One sentence or more.
        message: String,
    },
    /// This stage has lost another one, and waits for the group to form again. Every stage emits it.
    #[serde(rename = "stageLost")]
    StageLost {
        /// The other stage.
        stage: u32,
        /// Its incarnation.
        incarnation: u32,
        /// Whether its process has ended for sure.
        #[serde(default)]
        has_ended: bool,
        /// The way in which it was lost.
        message: String,
    },
    /// A spare is connected to the group and ready to replace a lost stage.
    StandingBy {
        /// The spare's number.
        spare: u32,
    },
    /// A spare replaces a stage whose process has ended.
    #[serde(rename = "tookPlace")]
    Promoted {
        /// The spare's number.
        spare: u32,
        /// The stage that it replaces.
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
    /// The number of layers of each chunk.
    pub partition: Vec<usize>,
    /// Microbatches per step.
    pub microbatches: usize,
    /// The first step to run, counted from 1.
    pub first_step: u64,
    /// The last step.
    pub steps: u64,
    /// The number of parameters; tied ones count once.
    pub parameters: u64,
    /// The number of tokens in the training split.
    pub tokens: u64,
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The simulated bubble, 0 to 1, averaged over stages.
    pub expected_bubble: f64,
    /// Unigram entropy of the held-out tokens, in nats per token: the loss of a model that knows only token
    /// frequencies.
    pub unigram_entropy: Option<f64>,
    /// The differences between the environments in which the run was trained so far; empty if all its numbers are from
    /// one environment.
    #[serde(default)]
    pub environment_differences: Vec<String>,
    /// The differences that audits have found in the run so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_differences: Vec<String>,
    /// The incarnation of each of the job's ranks; `None` for a rank that the group trains without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incarnations: Vec<Option<u32>>,
}

/// The cost of checkpoints in memory for a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryCheckpointRecord {
    /// Seconds for which training waited.
    pub stall_seconds: f64,
    /// Bytes sent to the next stage.
    pub bytes_sent: u64,
}

/// A work item that a second stage has recomputed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// The step of the work item: the one before the step of the line.
    pub step: u64,
    /// The stage that was audited.
    pub stage: u32,
    /// The chunk.
    pub chunk: usize,
    /// The microbatch, counted over the step.
    pub microbatch: usize,
    /// The stage that recomputed it.
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
    /// The stages that may compute wrong: one, if the other stages could determine it.
    pub suspects: Vec<SuspectedStage>,
    /// The description, as a sentence.
    pub message: String,
}

/// One line of `metrics.jsonl`. Numbers that are not finite are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// The step, from 1.
    pub step: u64,
    /// Mean cross-entropy of the step's targets, in nats per token.
    pub loss: Option<f32>,
    /// Held-out loss after this step, in nats per token, if it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
    /// Mean cross-entropy of each source's targets, in nats per token, by the name of the source; empty in a job with one
    /// source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub source_losses: BTreeMap<String, f64>,
    /// Global gradient norm before clipping.
    pub gradient_norm: Option<f64>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Target tokens of the step.
    pub tokens: u64,
    /// Target tokens per second.
    pub tokens_per_second: f64,
    /// Wall seconds of the step.
    pub seconds: f64,
    /// Model FLOPs utilization, 0 to 1: on GPUs whose peak is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Share of the step in which each stage did not compute, 0 to 1, by stage.
    pub bubble: Vec<f64>,
    /// The part of `bubble` in which a stage's next input had been computed elsewhere and had not arrived.
    #[serde(default)]
    pub exposed_communication: Vec<f64>,
    /// Each stage's computation time relative to the mean of all stages.
    #[serde(default)]
    pub imbalance: Vec<f64>,
    /// Payload bytes sent over all links.
    pub bytes_sent: u64,
    /// The peak resident bytes of each stage's process so far, by stage.
    #[serde(default)]
    pub peak_bytes: Vec<u64>,
    /// Whether the update was skipped because the loss or the gradient was not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// For the first step of a group: the same as in [`StartRecord`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment_differences: Vec<String>,
    /// The save that finished during this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SaveRecord>,
    /// The cost of checkpoints in memory for stage 0 since the last record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_checkpoint: Option<MemoryCheckpointRecord>,
    /// The audit that ended with this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Box<AuditRecord>>,
    /// The actions of every stage with their times; only for some steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Box<TimelineRecord>>,
}

impl StepRecord {
    /// The bubble averaged over stages; `None` if it was not measured.
    pub(crate) fn mean_bubble(&self) -> Option<f64> {
        mean(&self.bubble)
    }

    /// The exposed communication averaged over stages; `None` if it was not measured.
    pub(crate) fn mean_exposed_communication(&self) -> Option<f64> {
        mean(&self.exposed_communication)
    }

    /// The imbalance of the slowest stage; `None` if it was not measured.
    pub(crate) fn largest_imbalance(&self) -> Option<f64> {
        self.imbalance.iter().copied().reduce(f64::max)
    }
}

fn mean(shares: &[f64]) -> Option<f64> {
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
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

/// The result of a run; also `result.json` in the job's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Steps trained.
    pub steps: u64,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Held-out loss at the end, in nats per token.
    pub evaluation_loss: Option<f64>,
    /// Unigram entropy of the held-out tokens, in nats per token.
    pub unigram_entropy: Option<f64>,
    /// BLAKE3 of the losses' f32 bits, in step order.
    pub losses_hash: String,
    /// BLAKE3 of the held-out losses' f64 bits, in step order; empty if nothing was evaluated.
    #[serde(default)]
    pub evaluation_losses_hash: String,
    /// BLAKE3 of the weights, sorted by name.
    pub weights_hash: String,
    /// Steps whose update was skipped.
    pub skipped: u64,
    /// The hash chain over all steps: their inputs and their results.
    #[serde(default, skip_serializing_if = "Receipt::is_missing")]
    pub receipt: Receipt,
    /// The model's folder, the last step's checkpoint, relative to the volume.
    pub model: String,
}

/// The number of differences found by audits that are kept; the metrics have all.
const MAX_AUDIT_DIFFERENCES: usize = 8;

/// Adds a difference found by an audit to the last ones.
pub fn keep_audit_difference(differences: &mut Vec<String>, message: &str) {
    differences.push(message.to_owned());
    differences.drain(..differences.len().saturating_sub(MAX_AUDIT_DIFFERENCES));
}
