//! The training loop: a step's data, its program, its record.

use std::time::Instant;

use stagecoach_data::MicrobatchLayout;
use stagecoach_group::{StepOutcome, StepVote, Verdict};
use stagecoach_pipeline::Programs;

use super::checkpoint::{CheckpointWriter, SaveSchedule};
use super::collective::topic;
use super::context::RunningStage;
use super::data_loader::BatchTensors;
use crate::execute::{Executor, StepInputs, StepMeasurements, StepOutput};
use crate::fatal::Fatal;
use crate::folder::METRICS;
use crate::model::Architecture;
use crate::observe::{MetricsError, MetricsFile, StepRecord, TrainingEvent};
use crate::plan::TrainerState;

/// Trains to the end, or until the step after which the group drains: then `state.step` is less than the plan's.
pub(super) fn train(running: &mut RunningStage, architecture: &dyn Architecture) -> Result<TrainerState, Fatal> {
    let metrics = match running.context.env.rank {
        0 => Some(open_metrics(running)?),
        _ => None,
    };
    let writer = CheckpointWriter::new(running, architecture)?;
    std::thread::scope(|scope| {
        let save_schedule =
            SaveSchedule::start(scope, &writer, running.context.monitor, running.context.config, &running.stage)?;
        step_loop(running, save_schedule, metrics)
    })
}

/// Started inside the fence: a group that has lost it since must not touch what a newer one writes.
fn open_metrics(running: &RunningStage) -> Result<MetricsFile, Fatal> {
    let (folder, fence) = (running.context.config.folder(), &running.plan.fence);
    let step = running.plan.trainer_state.step;
    let mut metrics = MetricsFile::new(&folder.join(METRICS), &folder.join(fence.work_dir()), step)?;
    if let Err(error) = metrics.flush() {
        fence.check(running.context.volume)?;
        if !error.is_volume_full() {
            return Err(error.into());
        }
        report_metrics_error(running, &error);
    }
    Ok(metrics)
}

/// Reports that metrics could not be written. A full volume does not stop training: lines are buffered and one message
/// is printed.
fn report_metrics_error(running: &RunningStage, error: &MetricsError) {
    running.emit(&TrainingEvent::Note { message: format!("{error}; training goes on") });
}

fn step_loop(
    running: &mut RunningStage,
    mut save_schedule: SaveSchedule,
    mut metrics: Option<MetricsFile>,
) -> Result<TrainerState, Fatal> {
    let mut state = running.plan.trainer_state.clone();
    let every = running.context.config.evaluation_interval();
    let mut sent_before = 0;
    broadcast_layouts(running, state.step)?;
    for index in state.step..running.plan.steps {
        let started = Instant::now();
        let step = index + 1;
        let learning_rate = running.context.config.learning_rate(state.decay_steps_at(index)).at(index);
        running.context.monitor.set_step(step);
        running.context.monitor.set_activity("DATA");
        broadcast_layouts(running, step)?;
        let layouts: Vec<MicrobatchLayout> = receive_layouts(running)?;
        let plan = running.data_loader.as_ref().map(|data_loader| data_loader.step_plan(index));
        let BatchTensors { token_ids, targets } = match (&running.data_loader, &plan) {
            (Some(data_loader), Some(plan)) => data_loader.tensors(plan),
            _ => BatchTensors::default(),
        };
        let count = plan.map_or(0, |plan| plan.target_count);
        let save = save_schedule.save_vote(step)?;
        let vote = StepVote {
            stop_requested: running.context.monitor.stop_requested(),
            save_due: save.due,
            save_in_progress: save.in_progress,
            consecutive_skips: state.skips_in_a_row,
            ..StepVote::default()
        };
        let inputs = StepInputs {
            layouts: &layouts,
            token_ids,
            targets,
            target_count: count,
            step: Some(step),
            learning_rate,
            vote,
        };
        let output = run_programs(running, &running.verified.training, &inputs)?;
        let Some(verdict) = output.verdict else { continue };
        state.record_step(&verdict);
        let seconds = started.elapsed().as_secs_f64();
        let evaluate =
            running.verified.evaluation.is_some() && (step == running.plan.steps || (every > 0 && step % every == 0));
        let evaluation_loss = if evaluate { Some(evaluate_held_out(running)?) } else { None };
        state.evaluation_loss = evaluation_loss.or(state.evaluation_loss);
        if let Some(metrics) = &mut metrics {
            let sent = bytes_sent(&verdict);
            let record = StepRecord {
                evaluation_loss,
                learning_rate,
                tokens: count,
                tokens_per_second: count as f64 / seconds,
                seconds,
                bytes_sent: sent - sent_before,
                checkpoint: save_schedule.take_record(),
                ..step_record(&verdict)
            };
            sent_before = sent;
            let had_pending_lines = metrics.has_pending_lines();
            if let (Err(error), false) = (metrics.append(&record), had_pending_lines) {
                report_metrics_error(running, &error);
            }
            running.emit(&TrainingEvent::Step(record));
            if matches!(verdict.outcome, StepOutcome::Skip) {
                let message = format!("step {step} was skipped: its loss or gradient is not finite");
                running.emit(&TrainingEvent::Note { message });
            }
        }
        if verdict.stop || step == running.plan.steps {
            save_schedule.save_final(&running.stage, &state, step < running.plan.steps)?;
            break;
        }
        save_schedule.on_step_boundary(&verdict, &running.stage, &state)?;
    }
    Ok(state)
}

/// Executes this rank's program on `inputs`.
fn run_programs(running: &mut RunningStage, programs: &Programs, inputs: &StepInputs) -> Result<StepOutput, Fatal> {
    let program = &programs.ranks[running.stage.rank];
    let activity = &running.member.activity();
    let (stage, links, placement) = (&mut running.stage, &mut running.links, &programs.placement);
    Ok(Executor { stage, links, member: running.member, activity, placement }.run(program, inputs)?)
}

/// Broadcasts, on stage 0, the layouts of step `index` (from 0), a step before they are needed.
fn broadcast_layouts(running: &RunningStage, index: u64) -> Result<(), Fatal> {
    match &running.data_loader {
        Some(data_loader) if running.context.env.rank == 0 && index < running.plan.steps => {
            let layouts = serde_json::to_vec(&data_loader.step_plan(index).layouts);
            Ok(running
                .member
                .broadcast(topic::LAYOUTS, layouts.map_err(|e| Fatal::invalid(format!("layouts: {e}")))?)?)
        }
        _ => Ok(()),
    }
}

fn receive_layouts(running: &RunningStage) -> Result<Vec<MicrobatchLayout>, Fatal> {
    let bytes = running.member.receive_broadcast(topic::LAYOUTS)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Fatal::invalid(format!("stage 0's layouts can't be read ({e}): all stages must run one version")))
}

/// Metrics record of a step.
fn step_record(verdict: &Verdict) -> StepRecord {
    StepRecord {
        step: verdict.step,
        loss: verdict.loss.is_finite().then_some(verdict.loss),
        gradient_norm: verdict.norm.is_finite().then_some(verdict.norm),
        bubble: stage_bubbles(verdict),
        skipped: matches!(verdict.outcome, StepOutcome::Skip),
        ..StepRecord::default()
    }
}

/// The measurements of each stage.
fn measurements(verdict: &Verdict) -> impl Iterator<Item = StepMeasurements> + '_ {
    verdict.measurements.iter().map(|numbers| StepMeasurements::from_slice(numbers))
}

/// Payload bytes sent by all stages so far.
fn bytes_sent(verdict: &Verdict) -> u64 {
    measurements(verdict).map(|stage| stage.bytes_sent as u64).sum()
}

/// Fraction of the step in which each stage did not compute, by stage. All start together, and the slowest ends the
/// step.
fn stage_bubbles(verdict: &Verdict) -> Vec<f64> {
    let step_seconds = measurements(verdict).map(|stage| stage.elapsed_seconds).fold(f64::MIN_POSITIVE, f64::max);
    measurements(verdict).map(|stage| 1.0 - (stage.elapsed_seconds - stage.waited_seconds) / step_seconds).collect()
}

/// The held-out loss, in nats per token, known to every rank.
fn evaluate_held_out(running: &mut RunningStage) -> Result<f64, Fatal> {
    let Some(programs) = &running.verified.evaluation else { return Ok(f64::NAN) };
    let plan = running.data_loader.as_ref().map(|data_loader| data_loader.evaluation_plan());
    let BatchTensors { token_ids, targets } = match (&running.data_loader, &plan) {
        (Some(data_loader), Some(plan)) => data_loader.tensors(plan),
        _ => BatchTensors::default(),
    };
    let count = plan.map_or(0, |plan| plan.target_count);
    let layouts = &running.plan.evaluation_layouts;
    let inputs = StepInputs {
        layouts,
        token_ids,
        targets,
        target_count: count,
        step: None,
        learning_rate: 0.0,
        vote: StepVote::default(),
    };
    let output = run_programs(running, programs, &inputs)?;
    running.context.monitor.set_activity("gathering the held-out loss");
    let own: f64 = output.loss / count.max(1) as f64;
    let all = running.member.all_gather(topic::EVALUATION, own.to_le_bytes().to_vec())?;
    let head_rank = programs.placement.last_rank();
    let bytes: [u8; 8] =
        all.get(head_rank).and_then(|b| b.as_slice().try_into().ok()).unwrap_or(f64::NAN.to_le_bytes());
    Ok(f64::from_le_bytes(bytes))
}
