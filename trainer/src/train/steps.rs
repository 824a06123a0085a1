//! The training loop: a step's data, its program, its record.

use std::mem::take;
use std::time::Instant;

use stagecoach_api::contract::FailureKind;
use stagecoach_data::MicrobatchLayout;
use stagecoach_group::{StepOutcome, StepVote};
use stagecoach_pipeline::Programs;

use super::checkpoint::{CheckpointWriter, SaveSchedule};
use super::collective::topic;
use super::context::RunningStage;
use super::data_loader::BatchTensors;
use super::evaluate::evaluate_held_out;
use super::step_recorder::StepRecorder;
use crate::execute::{Executor, StepInputs, StepOutput, StopSignal};
use crate::fatal::Fatal;
use crate::model::Architecture;
use crate::observe::{StepRecord, TrainingEvent};
use crate::plan::TrainerState;

/// Trains to the end, or until the step after which the group drains: then `state.step` is less than the plan's.
pub(super) fn train(running: &mut RunningStage, architecture: &dyn Architecture) -> Result<TrainerState, Fatal> {
    let mut state = running.plan.trainer_state.clone();
    let mut evaluation_loss = None;
    if state.evaluation_due {
        evaluation_loss = evaluate_held_out(running)?;
        let Some(loss) = evaluation_loss else { return Ok(state) };
        state.record_evaluation(loss);
    }
    let recorder = match running.context.env.rank {
        0 => Some(StepRecorder::open(running, architecture, evaluation_loss)?),
        _ => None,
    };
    let writer = CheckpointWriter::new(running, architecture)?;
    std::thread::scope(|scope| {
        let save_schedule =
            SaveSchedule::start(scope, &writer, running.context.monitor, running.context.config, &running.stage)?;
        step_loop(running, state, save_schedule, recorder)
    })
}

fn step_loop(
    running: &mut RunningStage,
    mut state: TrainerState,
    mut save_schedule: SaveSchedule,
    mut recorder: Option<StepRecorder>,
) -> Result<TrainerState, Fatal> {
    let monitor = running.context.monitor;
    let mut last_step = None;
    let every = running.context.config.evaluation_interval();
    let mut origin = Instant::now();
    let mut environment_differences = state.environment_differences.clone();
    broadcast_layouts(running, state.step)?;
    for index in state.step..running.plan.steps {
        let started = Instant::now();
        let step = index + 1;
        let learning_rate = running.context.config.learning_rate(state.decay_steps_at(index)).at(index);
        monitor.set_step(step);
        monitor.set_activity("DATA");
        broadcast_layouts(running, step)?;
        let layouts: Vec<MicrobatchLayout> = receive_layouts(running)?;
        let plan = running.data_loader.as_ref().map(|data_loader| data_loader.step_plan(index));
        let BatchTensors { token_ids, targets } = match (&running.data_loader, &plan) {
            (Some(data_loader), Some(plan)) => data_loader.tensors(plan, 0..plan.layouts.len()),
            _ => BatchTensors::default(),
        };
        let count = plan.map_or(0, |plan| plan.target_count);
        let save = save_schedule.save_vote(step)?;
        let vote = StepVote {
            save_due: save.due,
            save_in_progress: save.in_progress,
            consecutive_skips: state.skips_in_a_row,
            ..StepVote::default()
        };
        let drain = save_schedule.drain_estimate(started, last_step);
        let stop = || drain.stop(monitor.stop_requested_at(), Instant::now());
        let inputs = StepInputs {
            layouts: &layouts,
            token_ids,
            targets,
            target_count: count,
            loss_so_far: 0.0,
            step: Some(step),
            learning_rate,
            origin,
            vote,
            stop: StopSignal(&stop),
        };
        let output = run_programs(running, &running.verified.training, &inputs)?;
        let Some(verdict) = output.verdict else { continue };
        if verdict.outcome == StepOutcome::Drop {
            monitor.set_step(state.step);
            if !verdict.stop {
                return Err(Fatal::new(FailureKind::PeerLost, format!("a stage lost a link in step {step}")));
            }
            give_up_step(running, &mut save_schedule, &state)?;
            break;
        }
        state.record_step(&verdict);
        last_step = Some(started.elapsed());
        let seconds = started.elapsed().as_secs_f64();
        let has_held_out = !running.verified.evaluation.is_empty();
        let evaluate = has_held_out && (step == running.plan.steps || (every > 0 && step % every == 0));
        origin = output.decided_at.unwrap_or(started);
        let evaluation_loss = if evaluate && !verdict.stop { evaluate_held_out(running)? } else { None };
        if evaluate {
            origin = Instant::now();
        }
        state.evaluation_due = evaluate;
        if let Some(loss) = evaluation_loss {
            state.record_evaluation(loss);
        }
        if let Some(recorder) = &mut recorder {
            let record = StepRecord {
                step,
                evaluation_loss,
                learning_rate,
                tokens: count,
                tokens_per_second: count as f64 / seconds,
                seconds,
                environment_differences: take(&mut environment_differences),
                checkpoint: save_schedule.take_record(),
                ..StepRecord::default()
            };
            recorder.record(running, &verdict, record);
        }
        if verdict.stop || state.evaluation_due || step == running.plan.steps {
            let drained = step < running.plan.steps || state.evaluation_due;
            save_schedule.save_final(&running.stage, &state, drained)?;
            break;
        }
        save_schedule.on_step_boundary(&verdict, &running.stage, &state)?;
    }
    Ok(state)
}

/// Saves the last boundary in the place of the step that was given up. What this group began with is saved, or was never
/// trained.
fn give_up_step(running: &RunningStage, save_schedule: &mut SaveSchedule, state: &TrainerState) -> Result<(), Fatal> {
    if running.context.env.rank == 0 {
        let message = format!(
            "step {} is given up: the grace period is too short for it and the save; step {} is saved instead",
            state.step + 1,
            state.step
        );
        running.emit(&TrainingEvent::Note { message });
    }
    if state.step == running.plan.trainer_state.step {
        return Ok(());
    }
    save_schedule.save_final(&running.stage, state, true)
}

/// Executes this rank's program on `inputs`.
pub(super) fn run_programs(
    running: &mut RunningStage,
    programs: &Programs,
    inputs: &StepInputs,
) -> Result<StepOutput, Fatal> {
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
