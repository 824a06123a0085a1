//! The state of training that a checkpoint contains besides tensors.

use serde::{Deserialize, Serialize};
use stagecoach_group::{StepOutcome, Verdict};

/// State of training after a step. Serialised as `progress` in a checkpoint's manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TrainerState {
    /// Completed steps, including skipped ones. The data position is this times the global batch size.
    pub(crate) step: u64,
    /// Applied optimizer updates.
    pub(crate) updates: u64,
    /// Steps whose update was skipped.
    pub(crate) skipped: u64,
    /// Length of the current run of skipped steps.
    pub(crate) skips_in_a_row: u32,
    /// Chained BLAKE3 hash of the losses' f32 bits by step, in hex; empty before the first step.
    pub(crate) losses: String,
    /// Loss of the last step, in nats per token.
    pub(crate) loss: Option<f32>,
    /// Most recent held-out loss, in nats per token.
    pub(crate) evaluation_loss: Option<f64>,
    /// The step at which the learning rate's decay ends, as fixed by the first attempt.
    pub(crate) decay_steps: u64,
    /// The job's number of steps when its last decay was fixed; 0 in checkpoints that did not record it.
    #[serde(default)]
    pub(crate) length: u64,
    /// The decays of added steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<DecayExtension>,
}

/// The learning rate's decay for steps that were added to a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecayExtension {
    /// The first step to which it applies, counted from 0.
    pub(crate) from: u64,
    /// The step at which it ends.
    pub(crate) decay_steps: u64,
}

impl TrainerState {
    /// The step at which the decay that applies to `step`, counted from 0, ends.
    pub(crate) fn decay_steps_at(&self, step: u64) -> u64 {
        let extension = self.extensions.iter().rev().find(|extension| extension.from <= step);
        extension.map_or(self.decay_steps, |extension| extension.decay_steps)
    }

    /// Updates the state after a step.
    pub(crate) fn record_step(&mut self, verdict: &Verdict) {
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
