//! The training loop: a step's data, its program, its record.

use std::time::Instant;

use stagecoach_data::MicrobatchLayout;
use stagecoach_group::StepVote;
use stagecoach_pipeline::Programs;

use super::checkpoint::{CheckpointWriter, SaveSchedule};
use super::collective::topic;
use super::context::RunningStage;
use super::data_loader::BatchTensors;
use super::evaluate::evaluate_held_out;
use super::step_recorder::StepRecorder;
use crate::execute::{Executor, StepInputs, StepOutput};
use crate::fatal::Fatal;
use crate::model::Architecture;
use crate::observe::StepRecord;
use crate::plan::TrainerState;

/// Trains to the end, or until the step after which the group drains: then `state.step` is less than the plan's.
pub(super) fn train(running: &mut RunningStage, architecture: &dyn Architecture) -> Result<TrainerState, Fatal> {
    let recorder = match running.context.env.rank {
        0 => Some(StepRecorder::open(running, architecture)?),
        _ => None,
    };
    let writer = CheckpointWriter::new(running, architecture)?;
    std::thread::scope(|scope| {
        let save_schedule =
            SaveSchedule::start(scope, &writer, running.context.monitor, running.context.config, &running.stage)?;
        step_loop(running, save_schedule, recorder)
    })
}

fn step_loop(
    running: &mut RunningStage,
    mut save_schedule: SaveSchedule,
    mut recorder: Option<StepRecorder>,
) -> Result<TrainerState, Fatal> {
    let mut state = running.plan.trainer_state.clone();
    let every = running.context.config.evaluation_interval();
    let mut origin = Instant::now();
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
            (Some(data_loader), Some(plan)) => data_loader.tensors(plan, 0..plan.layouts.len()),
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
            loss_so_far: 0.0,
            step: Some(step),
            learning_rate,
            origin,
            vote,
        };
        let output = run_programs(running, &running.verified.training, &inputs)?;
        let Some(verdict) = output.verdict else { continue };
        state.record_step(&verdict);
        let seconds = started.elapsed().as_secs_f64();
        let has_held_out = !running.verified.evaluation.is_empty();
        let evaluate = has_held_out && (step == running.plan.steps || (every > 0 && step % every == 0));
        origin = output.decided_at.unwrap_or(started);
        let evaluation_loss = if evaluate { Some(evaluate_held_out(running)?) } else { None };
        if evaluate {
            origin = Instant::now();
        }
        state.evaluation_loss = evaluation_loss.or(state.evaluation_loss);
        if let Some(recorder) = &mut recorder {
            let record = StepRecord {
                step,
                evaluation_loss,
                learning_rate,
                tokens: count,
                tokens_per_second: count as f64 / seconds,
                seconds,
                checkpoint: save_schedule.take_record(),
                ..StepRecord::default()
            };
            recorder.record(running, &verdict, record);
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
