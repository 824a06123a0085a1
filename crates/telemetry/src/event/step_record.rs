//! The record of a step, one line of `metrics.jsonl`, with the evaluation that followed the step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{AuditRecord, MemoryCheckpointRecord, SaveRecord};
use crate::TimelineRecord;

/// One line of `metrics.jsonl`. Numbers that are not finite are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// The number of the step, from 1.
    pub step: u64,
    /// Mean cross-entropy of the step's targets, in nats per token.
    pub loss: Option<f32>,
    /// Held-out loss after this step, in nats per token, if the step was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
    /// Loss on each held-out set after this step, in nats per token, by the name of the set. The map is empty if the
    /// step was not evaluated. JSON leaves out losses that are not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_losses")]
    pub evaluation_set_losses: BTreeMap<String, f64>,
    /// The best evaluation so far, in the record of a step that was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<BestEvaluation>,
    /// Mean cross-entropy of each source's targets, in nats per token, by the name of the source. The map is empty in a
    /// job with one source. JSON leaves out losses that are not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_losses")]
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
    /// Wall seconds that the leader waited for the step's data. Only a job that streams its corpus measures this wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_wait_seconds: Option<f64>,
    /// Model FLOPs utilization, 0 to 1; `None` unless the peak of all GPUs is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Share of the step in which each stage did not compute, 0 to 1, by stage.
    pub bubble: Vec<f64>,
    /// The part of `bubble` in which another stage had computed the stage's next input, but the input had not arrived
    /// yet, by stage.
    #[serde(default)]
    pub exposed_communication: Vec<f64>,
    /// Each stage's computation time divided by the mean of all stages, by stage.
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
    /// The environment differences of [`StartRecord`](super::StartRecord). Only the first record of a group (the
    /// processes that train together) has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment_differences: Vec<String>,
    /// The save that finished during this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SaveRecord>,
    /// The cost of checkpoints in memory for the leader since the last record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_checkpoint: Option<MemoryCheckpointRecord>,
    /// The audit that ended with this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Box<AuditRecord>>,
    /// The actions of every stage with their times. Only the records of some steps have a timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Box<TimelineRecord>>,
}

impl StepRecord {
    /// Adds the evaluation that followed the step.
    pub fn set_evaluation(&mut self, evaluation: EvaluationRecord) {
        self.evaluation_loss = Some(evaluation.loss);
        self.evaluation_set_losses = evaluation.set_losses;
        self.best_evaluation = evaluation.best;
    }

    /// Returns the bubble averaged over stages; `None` if it was not measured.
    pub(crate) fn mean_bubble(&self) -> Option<f64> {
        mean(&self.bubble)
    }

    /// Returns the exposed communication averaged over stages; `None` if it was not measured.
    pub(crate) fn mean_exposed_communication(&self) -> Option<f64> {
        mean(&self.exposed_communication)
    }

    /// Returns the imbalance of the slowest stage; `None` if it was not measured.
    pub(crate) fn largest_imbalance(&self) -> Option<f64> {
        self.imbalance.iter().copied().reduce(f64::max)
    }
}

fn mean(shares: &[f64]) -> Option<f64> {
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Serialises only the losses that are finite. JSON has no form for other numbers, and a reader of the line would
/// refuse a null.
pub(super) fn finite_losses<S: Serializer>(losses: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(losses.iter().filter(|(_, loss)| loss.is_finite()))
}

/// An evaluation on the held-out sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationRecord {
    /// Held-out loss, in nats per token.
    pub loss: f64,
    /// Loss on each held-out set, in nats per token, by the name of the set.
    pub set_losses: BTreeMap<String, f64>,
    /// The best evaluation so far, this one included.
    pub best: Option<BestEvaluation>,
}

/// The evaluation with the lowest held-out loss so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BestEvaluation {
    /// The step after which the model was evaluated.
    pub step: u64,
    /// The held-out loss of that evaluation, in nats per token. The loss is finite.
    pub loss: f64,
    /// The number of evaluations since that step.
    pub evaluations_since: u32,
}

impl BestEvaluation {
    /// Whether the run was evaluated again after this evaluation.
    pub(crate) fn is_earlier(&self) -> bool {
        self.evaluations_since > 0
    }

    /// Returns the best evaluation after one more evaluation. The new evaluation is the best if its loss is lower than
    /// every loss before it. A loss that is not finite is never the best.
    pub fn after(best: Option<BestEvaluation>, step: u64, loss: f64) -> Option<BestEvaluation> {
        match best {
            Some(best) if !loss.is_finite() || loss >= best.loss => {
                Some(BestEvaluation { evaluations_since: best.evaluations_since.saturating_add(1), ..best })
            }
            _ => loss.is_finite().then_some(BestEvaluation { step, loss, evaluations_since: 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::RunSummary;

    fn best(step: u64, loss: f64, evaluations_since: u32) -> Option<BestEvaluation> {
        Some(BestEvaluation { step, loss, evaluations_since })
    }

    #[test]
    fn the_lowest_held_out_loss_is_the_best_and_the_first_of_equal_ones() {
        let losses = [f64::NAN, f64::INFINITY, 3.0, 2.5, 2.5, 2.75, f64::NAN, f64::NEG_INFINITY, 2.0];
        let mut found = Vec::new();
        for (evaluation, loss) in (1..).zip(losses) {
            found.push(BestEvaluation::after(found.last().copied().flatten(), evaluation * 100, loss));
        }
        let of_400 = |evaluations_since| best(400, 2.5, evaluations_since);
        let expected = [None, None, best(300, 3.0, 0), of_400(0), of_400(1), of_400(2), of_400(3), of_400(4)];
        assert_eq!(found[..8], expected);
        assert_eq!(found[8], best(900, 2.0, 0));
        assert_eq!(BestEvaluation::after(best(1, 2.0, u32::MAX), 2, 2.0), best(1, 2.0, u32::MAX));
    }

    #[test]
    fn losses_that_are_not_finite_are_left_out_of_json() {
        let losses = BTreeMap::from([("code".to_owned(), f64::NAN), ("web".to_owned(), 2.5)]);
        let infinite = BTreeMap::from([("code".to_owned(), f64::INFINITY)]);
        let record = StepRecord {
            evaluation_set_losses: losses.clone(),
            best_evaluation: best(400, 2.5, 3),
            source_losses: infinite,
            ..StepRecord::default()
        };
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["evaluationSetLosses"], json!({"web": 2.5}));
        assert_eq!(written["bestEvaluation"], json!({"step": 400, "loss": 2.5, "evaluationsSince": 3}));
        let read: StepRecord = serde_json::from_value(written).unwrap();
        assert_eq!(read.evaluation_set_losses, BTreeMap::from([("web".to_owned(), 2.5)]));
        assert_eq!((read.best_evaluation, read.source_losses.len()), (record.best_evaluation, 0));

        let summary = RunSummary { evaluation_set_losses: losses, ..RunSummary::default() };
        let text = serde_json::to_string(&summary).unwrap();
        let read: RunSummary = serde_json::from_str(&text).unwrap();
        assert_eq!(read.evaluation_set_losses, BTreeMap::from([("web".to_owned(), 2.5)]));
    }

    #[test]
    fn only_a_step_that_measured_its_wait_for_data_has_the_field() {
        let waited = StepRecord { data_wait_seconds: Some(0.0), ..StepRecord::default() };
        assert_eq!(serde_json::to_value(&waited).unwrap()["dataWaitSeconds"], json!(0.0));
        let text = serde_json::to_string(&waited).unwrap();
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), waited);
        let text = serde_json::to_string(&StepRecord::default()).unwrap();
        assert!(!text.contains("dataWait"), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap().data_wait_seconds, None);
    }

    #[test]
    fn a_record_without_an_evaluation_has_none_of_its_fields() {
        let record = serde_json::to_string(&StepRecord::default()).unwrap();
        let summary = serde_json::to_string(&RunSummary::default()).unwrap();
        for field in ["evaluationSetLosses", "bestEvaluation", "endedEarly"] {
            assert!(!record.contains(field) && !summary.contains(field), "{field} in {record} or {summary}");
        }
        assert_eq!(serde_json::from_str::<StepRecord>(&record).unwrap(), StepRecord::default());
    }
}
