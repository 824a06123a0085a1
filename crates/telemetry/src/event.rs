//! The events that stages, mostly stage 0, emit during a run: log lines in a pod, JSON lines on stdout under the
//! launcher.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
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
        /// The lost stage.
        stage: u32,
        /// The incarnation of the lost stage.
        incarnation: u32,
        /// Whether the stage's process has certainly ended.
        #[serde(default)]
        has_ended: bool,
        /// The way in which the stage was lost.
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
    /// The number of tokens in the training split; `None` if the corpus is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
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
    /// Loss on each held-out set after this step, in nats per token, by the name of the set; empty if it was not
    /// evaluated. JSON leaves out losses that are not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "finite_losses")]
    pub evaluation_set_losses: BTreeMap<String, f64>,
    /// The best evaluation so far, in the record of a step that was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<BestEvaluation>,
    /// Mean cross-entropy of each source's targets, in nats per token, by the name of the source; empty in a job with
    /// one source. JSON leaves out losses that are not finite.
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
    /// Wall seconds for which stage 0 waited for the step's data; only in a job that streams its corpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_wait_seconds: Option<f64>,
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
    /// The differences in [`StartRecord`], in the record of a group's first step.
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
    /// Adds the evaluation after the step.
    pub fn set_evaluation(&mut self, evaluation: EvaluationRecord) {
        self.evaluation_loss = Some(evaluation.loss);
        self.evaluation_set_losses = evaluation.set_losses;
        self.best_evaluation = evaluation.best;
    }

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

/// Writes the losses that are finite: JSON has no other numbers, and a null would make the line unreadable.
fn finite_losses<S: Serializer>(losses: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
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
    /// The held-out loss of that evaluation, in nats per token: finite.
    pub loss: f64,
    /// The number of evaluations since then.
    pub evaluations_since: u32,
}

impl BestEvaluation {
    /// Whether a later evaluation exists.
    pub(crate) fn is_earlier(&self) -> bool {
        self.evaluations_since > 0
    }

    /// The best evaluation after one more evaluation: the new one if its loss is lower than all before. A loss that is
    /// not finite is never the best.
    pub fn after(best: Option<BestEvaluation>, step: u64, loss: f64) -> Option<BestEvaluation> {
        match best {
            Some(best) if !loss.is_finite() || loss >= best.loss => {
                Some(BestEvaluation { evaluations_since: best.evaluations_since.saturating_add(1), ..best })
            }
            _ => loss.is_finite().then_some(BestEvaluation { step, loss, evaluations_since: 0 }),
        }
    }
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Steps trained.
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
    /// The reason that training ended before its last step, as a sentence without a full stop; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
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

/// The number of audit differences that are kept; the metrics have all differences.
const MAX_AUDIT_DIFFERENCES: usize = 8;

/// Appends an audit difference, and drops the oldest one beyond the limit.
pub fn keep_audit_difference(differences: &mut Vec<String>, message: &str) {
    differences.push(message.to_owned());
    differences.drain(..differences.len().saturating_sub(MAX_AUDIT_DIFFERENCES));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
