//! How far training is: what a checkpoint keeps besides tensors.

use serde::{Deserialize, Serialize};
use stagecoach_group::{StepOutcome, Verdict};

use super::Extension;

/// Everything about the past that the future depends on or the end reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Steps complete. The data's position is this times the batch: skipped steps count.
    pub step: u64,
    /// Updates applied.
    pub updates: u64,
    /// Steps whose update was skipped.
    pub skipped: u64,
    /// Of these, the last so many without an update between them.
    pub skips_in_a_row: u32,
    /// Chained BLAKE3 over the losses' f32 bits by step, in hex; empty before the first.
    pub losses: String,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// The last held-out loss, in nats per token.
    pub evaluation_loss: Option<f64>,
    /// Where the learning rate's decay ends, as the first attempt fixed it.
    pub decay_steps: u64,
    /// Steps in all that the job had when its last decay was fixed; 0 in checkpoints that did not record it.
    #[serde(default)]
    pub length: u64,
    /// The decays of steps that were added, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
}

impl Progress {
    /// Takes note of a step.
    pub fn after(&mut self, verdict: &Verdict) {
        self.step = verdict.step;
        match verdict.outcome {
            StepOutcome::Apply { .. } => self.updates += 1,
            _ => self.skipped += 1,
        }
        self.skips_in_a_row = verdict.consecutive_skips;
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.losses.as_bytes()).update(&verdict.loss.to_le_bytes());
        self.losses = hasher.finalize().to_hex().to_string();
        self.loss = verdict.loss.is_finite().then_some(verdict.loss);
    }
}
