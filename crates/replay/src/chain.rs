//! Checks the record of a run against its receipts, without training a step. A receipt is a hash over the results of
//! all steps so far. A record that passes the check may still contain wrong results, which only a replay can find.

use stagecoach_api::job::{ChangeEffect, change_effect};
use stagecoach_checkpoint::differences;
use stagecoach_planner::CheckpointLink;
use stagecoach_telemetry::{Receipt, RunSummary, StepFacts, StepRecord};

use super::compare::ReplayDifference;
use super::record::{RecordedCheckpoint, RunRecord};

/// Returns the first contradiction within a record. Contradictions are missing lines, lines out of order, checkpoints
/// of different jobs, and a receipt, a checkpoint link or a result that does not match the record.
pub fn check_chain(record: &RunRecord) -> Option<ReplayDifference> {
    // the order of the lines is checked first, because a receipt is a hash over the lines in their order
    if let Some(unexpected) = first_unexpected_line(&record.steps, record.last_step()) {
        return Some(unexpected);
    }
    let checkpoints = record.checkpoints.windows(2).find_map(|pair| contradiction(&pair[0], &pair[1]));
    let receipts = first_receipt_mismatch(record);
    // the user sees the earliest difference
    let found = [checkpoints, receipts].into_iter().flatten().min_by_key(|difference| difference.step);
    found.or_else(|| {
        let (result, last) = (record.result.as_ref()?, record.checkpoints.last()?);
        // the result is that of the run's last step, and a single checkpoint may be an earlier one
        let is_of_last = record.single_step.is_none() || result.steps == last.manifest.step;
        if is_of_last { result_difference(result, last) } else { None }
    })
}

/// Returns the first line that breaks the sequence of steps 1, 2, 3 and so on to the last known step.
fn first_unexpected_line(steps: &[StepRecord], last: u64) -> Option<ReplayDifference> {
    let expected = (1..=last).zip(steps.iter().map(Some).chain(std::iter::repeat(None)));
    let mut wrong = expected.filter(|(step, line)| line.is_none_or(|line| line.step != *step));
    let (step, line) = wrong.next()?;
    let what = match line {
        Some(line) => format!("line {step} of metrics.jsonl is the record of step {}, expected step {step}", line.step),
        None => format!("metrics.jsonl has no line for step {step}, but the run has {last} steps"),
    };
    Some(ReplayDifference { step, what })
}

/// Returns the contradiction between two consecutive checkpoints, if there is one.
fn contradiction(before: &RecordedCheckpoint, after: &RecordedCheckpoint) -> Option<ReplayDifference> {
    let [from, step] = [before, after].map(|checkpoint| checkpoint.manifest.step);
    let different = differences(&after.manifest.metadata.identity, &before.manifest.metadata.identity);
    // a job that was extended by more steps may also have another decay of the learning rate
    let different = different.into_iter().find(|d| change_effect(&d.path) != Some(ChangeEffect::Extension));
    if let Some(d) = different {
        let text = |value: Option<serde_json::Value>| value.map_or_else(|| "absent".into(), |value| value.to_string());
        let what = format!(
            "the checkpoint of step {step} belongs to another job than the checkpoint of step {from}: {} is {} and \
             was {}",
            d.path,
            text(d.current),
            text(d.recorded)
        );
        return Some(ReplayDifference { step, what });
    }
    let link = CheckpointLink::of(&after.manifest).filter(|link| link.step == from)?;
    let is_other = CheckpointLink::to(&before.manifest).ok()? != link;
    is_other.then(|| ReplayDifference {
        step: from,
        what: format!(
            "the checkpoint of step {from} is not the checkpoint that existed when the checkpoint of step {step} was \
             saved"
        ),
    })
}

/// Finds the first checkpoint whose receipt differs from the receipt computed from the lines of `metrics.jsonl`. Skips
/// checkpoints without a receipt.
fn first_receipt_mismatch(record: &RunRecord) -> Option<ReplayDifference> {
    let with_receipt = |checkpoint: &&RecordedCheckpoint| !checkpoint.state.receipt.is_missing();
    let first = record.checkpoints.iter().find(with_receipt)?;
    let sequences = record.job.spec.training.as_ref().map_or(0, |training| u64::from(training.global_batch_size));
    let after = first.state.receipt.after;
    let mut receipt = Receipt::begin(&first.manifest.metadata.identity, after);
    let mut lines = record.steps.iter().filter(|line| line.step > after).peekable();
    let mut begins = after;
    for RecordedCheckpoint { manifest, state, .. } in record.checkpoints.iter().filter(with_receipt) {
        while let Some(line) = lines.next_if(|line| line.step <= manifest.step) {
            receipt.add(&StepFacts {
                step: line.step,
                sequences,
                learning_rate: line.learning_rate,
                loss: line.loss,
                gradient_norm: line.gradient_norm,
                skipped: line.skipped,
            });
        }
        if receipt != state.receipt {
            let step = manifest.step;
            let what = format!(
                "the lines of steps {} to {step} in metrics.jsonl do not match the receipt in the checkpoint of step \
                 {step}",
                begins + 1
            );
            return Some(ReplayDifference { step: begins + 1, what });
        }
        begins = manifest.step;
    }
    None
}

/// Returns the first difference between the result and the last checkpoint.
fn result_difference(result: &RunSummary, last: &RecordedCheckpoint) -> Option<ReplayDifference> {
    let state = &last.state;
    let step = last.manifest.step;
    let difference = |in_result: String, in_checkpoint: String, name: &str| {
        (in_result != in_checkpoint).then(|| ReplayDifference {
            step,
            what: format!("result.json has the {name} {in_result}, and the checkpoint of step {step} {in_checkpoint}"),
        })
    };
    difference(result.steps.to_string(), state.step.to_string(), "number of steps")
        .or_else(|| difference(result.losses_hash.clone(), state.losses.clone(), "losses hash"))
        .or_else(|| {
            difference(result.evaluation_losses_hash.clone(), state.evaluation_losses.clone(), "held-out losses hash")
        })
        .or_else(|| difference(result.receipt.head.clone(), state.receipt.head.clone(), "receipt"))
        .or_else(|| difference(format!("{:?}", result.loss), format!("{:?}", state.loss), "loss"))
        .or_else(|| {
            difference(format!("{:?}", result.evaluation_loss), format!("{:?}", state.evaluation_loss), "held-out loss")
        })
        .or_else(|| difference(result.skipped.to_string(), state.skipped.to_string(), "number of skipped updates"))
}
