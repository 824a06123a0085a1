//! The evaluation of the held-out sequences, set by set and window by window. A window is the microbatches that one
//! program computes. Only the tensors of one window, and its activations between chunks, exist at the same time.

use std::collections::BTreeMap;
use std::time::Instant;

use stagecoach_data::{BatchPlan, HeldOutSet, MicrobatchLayout};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{StepInputs, Uncontrolled};
use stagecoach_group::StepVote;
use stagecoach_pipeline::{GradientBlocks, Programs};
use stagecoach_planner::{HeldOutLosses, PlannedSet};

use crate::train::collective::{all_gather, topic};
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;
use crate::train::step::data_loader::BatchTensors;
use crate::train::step::running_step::run_programs;

/// Returns the held-out losses, in nats per token, on every rank. The loss is NaN if there are no held-out sequences.
/// The losses of the microbatches are added in their order, so that the bits do not depend on the size of a window.
/// Returns `None` if a stage was requested to stop. In that case, all stages end the evaluation at the same window.
pub(in crate::train) fn evaluate_held_out(running: &mut RunningStage) -> Result<Option<HeldOutLosses>, LeaveReason> {
    let Some(whole) = running.verified.evaluation.first() else {
        return Ok(Some(HeldOutLosses { loss: f64::NAN, by_set: BTreeMap::new() }));
    };
    let batches = running.data_loader.as_ref().map(|data_loader| data_loader.evaluation_sets());
    let mut own = Vec::new();
    for (index, set) in running.plan.evaluation_sets.iter().enumerate() {
        let batch = batches.as_ref().and_then(|sets| sets.get(index));
        match evaluate_set(running, set, batch)? {
            Some(sum) => own.push(sum.to_bits()),
            None => return Ok(None),
        }
    }
    running.context.monitor.set_activity("gathering the held-out loss");
    let all: Vec<Vec<u64>> = all_gather(running.member, topic::EVALUATION, &own)?;
    let last_stage_bits = all.get(whole.placement.last_rank()).map_or(&[][..], Vec::as_slice);
    let sums: Vec<f64> = last_stage_bits.iter().map(|&bits| f64::from_bits(bits)).collect();
    Ok(Some(held_out_losses(&running.plan.evaluation_sets, &sums)))
}

/// Computes the losses from the sums of the cross-entropies of each set.
fn held_out_losses(sets: &[PlannedSet], sums: &[f64]) -> HeldOutLosses {
    let mean = |sets: &[(&PlannedSet, f64)]| {
        let targets: u64 = sets.iter().map(|(set, _)| set.target_count).sum();
        sets.iter().map(|(_, sum)| sum).sum::<f64>() / targets.max(1) as f64
    };
    let sets: Vec<(&PlannedSet, f64)> = sets.iter().zip(sums.iter().copied()).collect();
    let counting: Vec<(&PlannedSet, f64)> = sets.iter().filter(|(set, _)| set.counts).copied().collect();
    let named = sets.iter().filter(|(set, _)| !set.name.is_empty());
    HeldOutLosses { loss: mean(&counting), by_set: named.map(|set| (set.0.name.clone(), mean(&[*set]))).collect() }
}

/// Returns the sum of the cross-entropies of a set on the rank that has the head, and 0 on other ranks. Returns `None`
/// if a stage was requested to stop.
fn evaluate_set(
    running: &mut RunningStage,
    set: &PlannedSet,
    batch: Option<&HeldOutSet>,
) -> Result<Option<f64>, LeaveReason> {
    let verified = running.verified;
    let window = verified.evaluation.first().map_or(1, |largest| largest.microbatches);
    let batch = batch.map(|set| &set.plan);
    let mut loss = 0.0;
    for (index, layouts) in set.layouts.chunks(window).enumerate() {
        let same_size = verified.evaluation.iter().find(|programs| programs.microbatches == layouts.len());
        let programs = same_size.ok_or_else(|| {
            StageError::invalid(format!(
                "the leader's plan is wrong: it has no evaluation of {} microbatches",
                layouts.len()
            ))
        })?;
        let stop = running.context.monitor.stop_requested_at().is_some();
        if all_gather(running.member, topic::EVALUATION, &stop)?.contains(&true) {
            return Ok(None);
        }
        if running.stage.replica.index > 0 {
            continue; // the first replica computes the whole evaluation
        }
        loss = evaluate_window(running, programs, layouts, batch, index * window, loss)?;
    }
    Ok(Some(loss))
}

/// Adds the cross-entropies of a window to `loss_so_far`, and returns the sum. The window starts with microbatch
/// `first` of `batch`.
fn evaluate_window(
    running: &mut RunningStage,
    programs: &Programs,
    layouts: &[MicrobatchLayout],
    batch: Option<&BatchPlan>,
    first: usize,
    loss_so_far: f64,
) -> Result<f64, LeaveReason> {
    let BatchTensors { token_ids, targets, rows: _ } = match (&running.data_loader, batch) {
        (Some(data_loader), Some(batch)) => data_loader.tensors(batch, first..first + layouts.len()),
        _ => BatchTensors::default(),
    };
    let inputs = StepInputs {
        layouts,
        token_ids,
        targets,
        rows: Vec::new(),
        target_count: batch.map_or(0, |batch| batch.target_count),
        blocks: &GradientBlocks::one(layouts.len()).whole(),
        loss_so_far,
        step: None,
        learning_rate: 0.0,
        origin: Instant::now(),
        vote: StepVote::default(),
    };
    Ok(run_programs(running, programs, &inputs, &mut Uncontrolled, Vec::new())?
        .losses
        .first()
        .copied()
        .unwrap_or(loss_so_far))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_held_out_loss_is_the_mean_over_the_targets_of_the_sets_that_count() {
        let set = |name: &str, counts, target_count| PlannedSet {
            name: name.to_owned(),
            counts,
            layouts: Vec::new(),
            target_count,
        };
        let sets = [set("web", true, 10), set("code", true, 30), set("books", false, 5)];
        let HeldOutLosses { loss, by_set } = held_out_losses(&sets, &[20.0, 30.0, 20.0]);
        assert_eq!(loss, 50.0 / 40.0);
        assert_eq!(
            by_set,
            [("web", 2.0), ("code", 1.0), ("books", 4.0)].map(|(name, loss)| (name.to_owned(), loss)).into()
        );
        let unnamed = held_out_losses(&[set("", true, 8)], &[20.0]);
        assert_eq!((unnamed.loss, unnamed.by_set.len()), (2.5, 0));
    }
}
