//! The state of training that a checkpoint contains besides tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stagecoach_data::StreamPosition;
use stagecoach_engine::state_dict::FrozenWeights;
use stagecoach_group::{StepOutcome, Verdict};
use stagecoach_telemetry::{BestEvaluation, EvaluationRecord, Receipt, StepFacts, StepRecord};

/// The state of training after a step. A checkpoint's manifest contains this state as `progress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerState {
    /// The number of completed steps, including skipped ones. The data position is this number times the global batch
    /// size.
    pub step: u64,
    /// The number of applied optimizer updates.
    pub updates: u64,
    /// The number of steps whose update was skipped.
    pub skipped: u64,
    /// The number of consecutive skipped steps up to this step.
    pub skips_in_a_row: u32,
    /// Chained BLAKE3 hash of the losses' f32 bits by step, in hex; empty before the first step.
    pub losses: String,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Most recent held-out loss, in nats per token.
    pub evaluation_loss: Option<f64>,
    /// Most recent loss of each named held-out set, in nats per token. Losses that are not finite are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evaluation_set_losses: BTreeMap<String, f64>,
    /// The evaluation with the lowest held-out loss so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<BestEvaluation>,
    /// Chained BLAKE3 hash of the held-out losses' f64 bits by step, in hex, including the losses of named sets. Empty
    /// before the first evaluation, and in checkpoints that did not record it.
    #[serde(default)]
    pub evaluation_losses: String,
    /// Whether the evaluation after the last step is due, because the group (the processes that train together) stopped
    /// before this evaluation. The next group then runs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evaluation_due: bool,
    /// The step at which the learning rate's decay ends, as the job's first attempt determined it.
    pub decay_steps: u64,
    /// The job's number of steps when its last decay was determined; 0 in checkpoints that did not record it.
    #[serde(default)]
    pub length: u64,
    /// The decays of added steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<DecayExtension>,
    /// The hash chain over all steps. If a checkpoint did not record a receipt, the chain begins where that checkpoint
    /// is loaded.
    #[serde(default, skip_serializing_if = "Receipt::is_missing")]
    pub receipt: Receipt,
    /// The distinct differences between the environments (libraries, processors, threads) of this run. After a
    /// difference, the run's results may differ from the results of a run in one environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment_differences: Vec<String>,
    /// The last differences that audits found. In an audit, another stage recomputes a microbatch of a stage. After the
    /// first difference, the weights may differ from the job's correct result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_differences: Vec<String>,
    /// The position in each source of a streamed corpus at which the next step continues to read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamPosition>,
    /// The frozen weights, which training does not update; `None` if the job has none, or has not loaded them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_weights: Option<FrozenWeights>,
    /// The record of the last step, if the metrics may lack it. With memory checkpoints, the trainer adds a step to the
    /// metrics only after the step can no longer be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten_record: Option<Box<StepRecord>>,
}

/// The losses of an evaluation, in nats per token.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutLosses {
    /// The job's held-out loss.
    pub loss: f64,
    /// The loss of each named held-out set.
    pub by_set: BTreeMap<String, f64>,
}

/// The learning rate's decay for steps that were added to a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecayExtension {
    /// The first step to which this decay applies, counted from 0.
    pub from: u64,
    /// The step at which the decay ends.
    pub decay_steps: u64,
}

impl TrainerState {
    /// Returns the step at which the decay that applies to `step` ends. Steps are counted from 0.
    pub fn decay_steps_at(&self, step: u64) -> u64 {
        let extension = self.extensions.iter().rev().find(|extension| extension.from <= step);
        extension.map_or(self.decay_steps, |extension| extension.decay_steps)
    }

    /// Begins the receipt, unless the checkpoint has one.
    pub fn begin_receipt(&mut self, identity: &serde_json::Value) {
        if self.receipt.is_missing() {
            self.receipt = Receipt::begin(identity, self.step);
        }
    }

    /// Updates the state after a step of `sequences` sequences.
    pub fn record_step(&mut self, verdict: &Verdict, learning_rate: f64, sequences: u64) {
        self.step = verdict.step;
        match verdict.outcome {
            StepOutcome::Apply { .. } => self.updates += 1,
            _ => self.skipped += 1,
        }
        self.skips_in_a_row = verdict.consecutive_skips;
        self.losses = chained_hash(&self.losses, &verdict.loss.to_le_bytes());
        self.loss = verdict.loss.is_finite().then_some(verdict.loss);
        self.receipt.add(&StepFacts {
            step: verdict.step,
            sequences,
            learning_rate,
            loss: self.loss,
            gradient_norm: verdict.norm.is_finite().then_some(verdict.norm),
            skipped: !matches!(verdict.outcome, StepOutcome::Apply { .. }),
        });
    }

    /// Records a difference of environments, unless it is recorded already.
    pub fn add_environment_difference(&mut self, difference: String) {
        if !self.environment_differences.contains(&difference) {
            self.environment_differences.push(difference);
        }
    }

    /// Updates the state after an evaluation that follows the last step. Returns the evaluation for that step's record.
    pub fn record_evaluation(&mut self, losses: HeldOutLosses) -> EvaluationRecord {
        self.evaluation_due = false;
        for loss in [losses.loss].iter().chain(losses.by_set.values()) {
            self.evaluation_losses = chained_hash(&self.evaluation_losses, &loss.to_le_bytes());
        }
        self.evaluation_loss = Some(losses.loss);
        // JSON represents only finite numbers
        let finite = losses.by_set.iter().filter(|(_, loss)| loss.is_finite());
        self.evaluation_set_losses = finite.map(|(name, loss)| (name.clone(), *loss)).collect();
        self.best_evaluation = BestEvaluation::after(self.best_evaluation, self.step, losses.loss);
        EvaluationRecord { loss: losses.loss, set_losses: losses.by_set, best: self.best_evaluation }
    }
}

/// Returns the hash of a sequence, in hex. `before` is the hash of all elements before `last`.
fn chained_hash(before: &str, last: &[u8]) -> String {
    blake3::Hasher::new().update(before.as_bytes()).update(last).finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_without_a_hash_of_held_out_losses_are_read() {
        let mut written =
            serde_json::json!(TrainerState { step: 7, evaluation_loss: Some(2.5), ..TrainerState::default() });
        written.as_object_mut().unwrap().remove("evaluationLosses").unwrap();
        let read: TrainerState = serde_json::from_value(written).unwrap();
        assert_eq!((read.step, read.evaluation_loss, read.evaluation_losses.as_str()), (7, Some(2.5), ""));
    }

    #[test]
    fn every_held_out_loss_and_their_order_change_the_hash() {
        let hash = |losses: &[f64]| {
            let mut state = TrainerState::default();
            for &loss in losses {
                state.record_evaluation(HeldOutLosses { loss, by_set: BTreeMap::new() });
            }
            state.evaluation_losses
        };
        let next = f64::from_bits(2.5f64.to_bits() + 1);
        let hashes = [&[][..], &[2.5], &[next], &[2.5, 2.0], &[2.0, 2.5], &[next, 2.0]].map(hash);
        assert_eq!(std::collections::BTreeSet::from(hashes.clone()).len(), hashes.len());
    }
}
