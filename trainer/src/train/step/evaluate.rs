//! The held-out loss, window by window, so that the tensors of all held-out sequences never exist at the same time, nor
//! the activations between chunks of more than one window.

use std::time::Instant;

use stagecoach_data::{BatchPlan, MicrobatchLayout};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{StepInputs, Uncontrolled};
use stagecoach_group::StepVote;
use stagecoach_pipeline::{GradientBlocks, Programs};

use crate::train::collective::{all_gather, topic};
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;
use crate::train::step::data_loader::BatchTensors;
use crate::train::step::run_programs;

/// The held-out loss, in nats per token, known to every rank; NaN if there are no held-out sequences. The microbatches'
/// losses are added in their order, so that the size of a window changes no bit. `None` if a stage was requested to
/// stop: all stages end the evaluation at the same window.
pub(in crate::train) fn evaluate_held_out(running: &mut RunningStage) -> Result<Option<f64>, LeaveReason> {
    let (verified, plan) = (running.verified, running.plan);
    let Some(whole) = verified.evaluation.first() else { return Ok(Some(f64::NAN)) };
    let batch = running.data_loader.as_ref().map(|data_loader| data_loader.evaluation_plan());
    let mut loss = 0.0;
    for (index, layouts) in plan.evaluation_layouts.chunks(whole.microbatches).enumerate() {
        let of_size = verified.evaluation.iter().find(|programs| programs.microbatches == layouts.len());
        let programs = of_size.ok_or_else(|| {
            StageError::invalid(format!(
                "stage 0's plan is wrong: it has no evaluation of {} microbatches",
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
        loss = evaluate_window(running, programs, layouts, batch.as_ref(), index * whole.microbatches, loss)?;
    }
    running.context.monitor.set_activity("gathering the held-out loss");
    let own: f64 = loss / batch.map_or(0, |batch| batch.target_count).max(1) as f64;
    let all = running.member.all_gather(topic::EVALUATION, own.to_le_bytes().to_vec())?;
    let bytes: [u8; 8] = all
        .get(whole.placement.last_rank())
        .and_then(|b| b.as_slice().try_into().ok())
        .unwrap_or(f64::NAN.to_le_bytes());
    Ok(Some(f64::from_le_bytes(bytes)))
}

/// The sum of the cross-entropies up to and including a window that starts with microbatch `first` of `batch`.
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
