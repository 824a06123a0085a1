//! What stage 0 tells of a run. In a pod it becomes log lines; under the launcher it travels as JSON lines.

use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// Work before the first step: `done` of `total` bytes of the corpus (both 0 where that is not how it is measured).
    Preparing {
        /// A phrase such as "tokenising".
        what: String,
        /// So far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// The group has formed and training starts.
    Started(Started),
    /// A step is complete.
    Step(StepRecord),
    /// A checkpoint is committed.
    Saved(SaveRecord),
    /// A checkpoint was not committed; the older ones stay, and the next one is tried as planned.
    SaveFailed(SaveRecord),
    /// Something a person should know.
    Note {
        /// A sentence.
        message: String,
    },
    /// Training is over and the model is saved.
    Finished(Summary),
}

/// What will run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// Stages.
    pub stages: usize,
    /// The schedule's name.
    pub schedule: String,
    /// Layers of each chunk.
    pub partition: Vec<usize>,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// The first step to run, counted from 1.
    pub first_step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Weights, a tied one once.
    pub parameters: u64,
    /// Tokens of the training part.
    pub tokens: u64,
    /// Words of the vocabulary.
    pub vocab_size: usize,
    /// Bubble that the simulator expects, 0 to 1, averaged over stages.
    pub expected_bubble: f64,
    /// Entropy of the held-out part's words, in nats: what a model that knows only their frequencies would lose.
    pub unigram_entropy: Option<f64>,
}

/// One line of `metrics.jsonl`. Numbers that are not finite are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// Steps complete, from 1.
    pub step: u64,
    /// Mean cross-entropy of the step's targets, in nats per token.
    pub loss: Option<f32>,
    /// Loss on the held-out part after this step, in nats per token, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
    /// Norm of the whole gradient before clipping.
    pub gradient_norm: Option<f64>,
    /// The step's learning rate.
    pub learning_rate: f64,
    /// Target tokens of the step.
    pub tokens: u64,
    /// Target tokens per second.
    pub tokens_per_second: f64,
    /// Wall seconds of the step.
    pub seconds: f64,
    /// Share of the step in which each stage waited, 0 to 1, by stage.
    pub bubble: Vec<f64>,
    /// Payload bytes that all links carried in the step.
    pub bytes_sent: u64,
    /// The update was skipped because loss or gradient was not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// The save that was over before this step ended and after the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SaveRecord>,
}

/// What came of a save.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SaveRecord {
    /// Steps that the checkpoint has behind it.
    pub step: u64,
    /// The step at which it fell due: earlier if it had to wait for the one before.
    pub due: u64,
    /// Wall seconds from the boundary to the commit.
    pub seconds: f64,
    /// Of these, the ones that training waited for.
    pub stall_seconds: f64,
    /// Processor seconds of all stages' threads that saved; what passes the bytes on to the device hardly takes any.
    pub cpu_seconds: f64,
    /// Bytes of the whole checkpoint.
    pub bytes: u64,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The end of a run; also kept as `result.json` in the job's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Steps trained.
    pub steps: u64,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Held-out loss at the end, in nats per token.
    pub evaluation_loss: Option<f64>,
    /// Entropy of the held-out part's words, in nats.
    pub unigram_entropy: Option<f64>,
    /// BLAKE3 of the losses' f32 bits by step.
    pub losses_hash: String,
    /// BLAKE3 of the tensors sorted by name.
    pub weights_hash: String,
    /// Steps whose update was skipped.
    pub skipped: u64,
    /// The model's folder, the last step's checkpoint, relative to the volume.
    pub model: String,
}
