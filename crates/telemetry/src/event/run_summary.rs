//! The result of a run, and its list of audit differences.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::step_record::{BestEvaluation, finite_losses};
use crate::Receipt;

/// The result of a run, which the job's folder contains as `result.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// The number of trained steps.
    pub steps: u64,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Held-out loss at the end, in nats per token.
    pub evaluation_loss: Option<f64>,
    /// Loss on each held-out set at the end, in nats per token, by the name of the set. JSON leaves out losses that are
    /// not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_losses")]
    pub evaluation_set_losses: BTreeMap<String, f64>,
    /// The best evaluation; `None` if no held-out loss was finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<BestEvaluation>,
    /// The reason that training ended before its last step, as a sentence without a full stop; `None` if training
    /// reached its last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
    /// Unigram entropy of the held-out tokens, in nats per token.
    pub unigram_entropy: Option<f64>,
    /// Chained BLAKE3 hash of the losses' f32 bits, in step order.
    pub losses_hash: String,
    /// Chained BLAKE3 hash of the held-out losses' f64 bits, in step order; empty if nothing was evaluated.
    #[serde(default)]
    pub evaluation_losses_hash: String,
    /// BLAKE3 of the weights, sorted by name.
    pub weights_hash: String,
    /// The number of steps whose update was skipped.
    pub skipped: u64,
    /// The hash chain over the inputs and results of all steps.
    #[serde(default, skip_serializing_if = "Receipt::is_missing")]
    pub receipt: Receipt,
    /// The path of the model's folder, relative to the volume. The folder is the checkpoint of the last step.
    pub model: String,
}

/// The number of audit differences that a list keeps. `metrics.jsonl` has all differences.
const MAX_AUDIT_DIFFERENCES: usize = 8;

/// Appends an audit difference, and drops the oldest differences beyond the limit.
pub fn keep_audit_difference(differences: &mut Vec<String>, message: &str) {
    differences.push(message.to_owned());
    differences.drain(..differences.len().saturating_sub(MAX_AUDIT_DIFFERENCES));
}
