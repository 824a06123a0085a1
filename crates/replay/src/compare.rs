//! Finds the first difference between the record of steps and a replay of these steps. Numbers are compared bit for
//! bit.

use std::collections::BTreeMap;
use std::fmt;

use stagecoach_checkpoint::{Manifest, TensorEntry};
use stagecoach_telemetry::{RunSummary, StepRecord};

use stagecoach_planner::TrainerState;

/// The first difference, and its step.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayDifference {
    /// The step of the difference.
    pub step: u64,
    /// A sentence about the difference, which names the step.
    pub what: String,
}

impl fmt::Display for ReplayDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Returns the first replayed step whose record differs or is missing.
pub fn compare_steps(recorded: &[StepRecord], replayed: &[StepRecord]) -> Option<ReplayDifference> {
    replayed.iter().find_map(|here| {
        let step = here.step;
        let what = match recorded.iter().find(|record| record.step == step) {
            None => "has no line in the record".to_owned(),
            Some(record) => field_difference(record, here)?,
        };
        Some(ReplayDifference { step, what: format!("step {step} {what}") })
    })
}

/// Returns the first field in which two records of a step differ, as the end of a sentence about the step. Ignores
/// measurements, such as times, and ignores the held-out loss unless both records have one.
fn field_difference(recorded: &StepRecord, replayed: &StepRecord) -> Option<String> {
    let differs = |name: &str, in_record: Option<f64>, in_replay: Option<f64>| {
        let bits = |value: Option<f64>| value.map(f64::to_bits);
        (bits(in_record) != bits(in_replay)).then(|| {
            format!("has the {name} {} in the record and {} in the replay", number(in_record), number(in_replay))
        })
    };
    let [r, h] = [recorded, replayed];
    let evaluated = r.evaluation_loss.is_some() && h.evaluation_loss.is_some();
    // the loss is formatted as `f32`, because the text of an `f64` would have more digits
    let loss = || {
        let [in_record, in_replay] =
            [r, h].map(|record| record.loss.map_or_else(|| "none".into(), |loss| loss.to_string()));
        format!("has the loss {in_record} in the record and {in_replay} in the replay")
    };
    (r.loss.map(f32::to_bits) != h.loss.map(f32::to_bits))
        .then(loss)
        .or_else(|| differs("gradient norm", r.gradient_norm, h.gradient_norm))
        .or_else(|| differs("learning rate", Some(r.learning_rate), Some(h.learning_rate)))
        .or_else(|| differs("target count", Some(r.tokens as f64), Some(h.tokens as f64)))
        .or_else(|| {
            (r.skipped != h.skipped).then(|| {
                let text = |skipped| if skipped { "skipped" } else { "applied" };
                format!("has its update {} in the record and {} in the replay", text(r.skipped), text(h.skipped))
            })
        })
        .or_else(|| differs("held-out loss", r.evaluation_loss, h.evaluation_loss).filter(|_| evaluated))
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "none (not finite)".into(), |value| value.to_string())
}

/// Returns the first tensor whose bytes differ, in the order of the names. Compares both weights and moments.
pub fn compare_tensors(recorded: &Manifest, replayed: &Manifest) -> Option<ReplayDifference> {
    let by_name = |manifest| -> BTreeMap<&str, &TensorEntry> { tensors_by_name(manifest) };
    let (in_record, mut in_replay) = (by_name(recorded), by_name(replayed));
    let step = recorded.step;
    let difference =
        |what: String| Some(ReplayDifference { step, what: format!("the checkpoint of step {step} {what}") });
    for (name, entry) in in_record {
        match in_replay.remove(name) {
            None => return difference(format!("has a tensor {name}, which this model lacks")),
            Some(other) if other.shape != entry.shape => {
                return difference(format!(
                    "has {name} with the shape {:?}, and the replay has the shape {:?}",
                    entry.shape, other.shape
                ));
            }
            Some(other) if other.blake3 != entry.blake3 => {
                return difference(format!("has other values in {name} than the replay"));
            }
            Some(_) => {}
        }
    }
    in_replay.keys().next().and_then(|name| difference(format!("lacks the tensor {name}")))
}

fn tensors_by_name(manifest: &Manifest) -> BTreeMap<&str, &TensorEntry> {
    manifest.tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect()
}

/// Returns the first difference between a recorded checkpoint and the replay's checkpoint of the same step. Compares
/// the tensors first, then the state of training.
pub fn compare_checkpoints(
    recorded: (&Manifest, &TrainerState),
    replayed: (&Manifest, &TrainerState),
) -> Option<ReplayDifference> {
    let (in_record, in_replay) = (recorded.1, replayed.1);
    let step = recorded.0.step;
    let what = |name: &str, in_record: &dyn fmt::Display, in_replay: &dyn fmt::Display| {
        let what = format!("the checkpoint of step {step} has the {name} {in_record}, and the replay {in_replay}");
        Some(ReplayDifference { step, what })
    };
    compare_tensors(recorded.0, replayed.0).or_else(|| match () {
        () if in_record.updates != in_replay.updates => {
            what("number of updates", &in_record.updates, &in_replay.updates)
        }
        () if in_record.skipped != in_replay.skipped => {
            what("number of skipped updates", &in_record.skipped, &in_replay.skipped)
        }
        () if in_record.losses != in_replay.losses => what("losses hash", &in_record.losses, &in_replay.losses),
        () if !in_record.receipt.is_missing() && in_record.receipt != in_replay.receipt => {
            what("receipt", &in_record.receipt.head, &in_replay.receipt.head)
        }
        () => None,
    })
}

/// Returns the first difference between the result of a run and the result of a replay that ends at the run's last
/// step.
pub fn compare_results(recorded: &RunSummary, replayed: &RunSummary) -> Option<ReplayDifference> {
    let hashes = |result: &RunSummary| {
        [
            ("weights hash", result.weights_hash.clone()),
            ("losses hash", result.losses_hash.clone()),
            ("loss", format!("{:?}", result.loss)),
            ("number of skipped updates", result.skipped.to_string()),
        ]
    };
    let found = hashes(recorded).into_iter().zip(hashes(replayed)).find(|(recorded, replayed)| recorded != replayed);
    found.map(|((name, in_result), (_, in_replay))| ReplayDifference {
        step: recorded.steps,
        what: format!("result.json has the {name} {in_result}, and the replay {in_replay}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            loss: Some(3.25),
            gradient_norm: Some(0.5),
            learning_rate: 1e-3,
            tokens: 288,
            seconds: step as f64,
            ..StepRecord::default()
        }
    }

    #[test]
    fn the_first_step_that_differs_is_reported_with_both_values() {
        let recorded: Vec<StepRecord> = (1..=9).map(record).collect();
        let replayed: Vec<StepRecord> = (4..=7).map(|step| StepRecord { seconds: 0.0, ..record(step) }).collect();
        assert_eq!(compare_steps(&recorded, &replayed), None);
        let changed = |change: &dyn Fn(&mut StepRecord)| {
            let mut recorded = recorded.clone();
            change(&mut recorded[4]);
            change(&mut recorded[5]);
            compare_steps(&recorded, &replayed).map(|difference| difference.what).unwrap_or_default()
        };
        assert_eq!(
            changed(&|r| r.loss = Some(f32::from_bits(3.25f32.to_bits() + 1))),
            "step 5 has the loss 3.2500002 in the record and 3.25 in the replay"
        );
        assert_eq!(
            changed(&|r| r.gradient_norm = None),
            "step 5 has the gradient norm none (not finite) in the record and 0.5 in the replay"
        );
        assert!(changed(&|r| r.learning_rate = 1.0000000000000002e-3).contains("learning rate"));
        assert!(changed(&|r| r.tokens = 1).contains("target count 1 in the record and 288"));
        assert!(changed(&|r| r.skipped = true).contains("skipped in the record and applied"));
        assert_eq!(changed(&|r| r.step = 100), "step 5 has no line in the record");
        assert_eq!(changed(&|r| r.evaluation_loss = Some(1.0)), "", "the replay did not evaluate that step");
    }
}
