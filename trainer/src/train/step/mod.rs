//! The training loop: the data, the program and the record of each step.

pub(in crate::train) mod after_step;
pub(in crate::train) mod announcement;
pub(in crate::train) mod audit;
pub(in crate::train) mod data_loader;
pub(in crate::train) mod evaluate;
pub(in crate::train) mod measured_step;
mod running_step;
pub(in crate::train) mod step_recorder;

use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{StepInputs, StepOutput, StepProbe, finish_gathers, longest_wait};
use stagecoach_group::{StepOutcome, StepVote};
use stagecoach_model::Architecture;
use stagecoach_planner::TrainerState;
use stagecoach_replay::write_dump;

use crate::train::collective::{all_gather, topic};
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;
use crate::train::recover::link_failure;
use crate::train::save::memory::MemoryCheckpoints;
use crate::train::save::{CheckpointWriter, SaveSchedule};
use crate::train::setup::resume::quarantine_from;
use crate::train::step::announcement::{Announced, StepAnnouncement};
use crate::train::step::audit::Audits;
use crate::train::step::data_loader::BatchTensors;
use crate::train::step::evaluate::evaluate_held_out;
use crate::train::step::running_step::{RunningStep, run_programs};
use crate::train::step::step_recorder::StepRecorder;

/// Trains to the end, or until the step after which the group drains. A group drains if all its stages stop after the
/// same step and save their state. If the group drains, the returned `state.step` is less than the plan's number of
/// steps, or the held-out loss of the last step is still due. Also returns whether the group drained in order to form
/// again.
pub(in crate::train) fn train<'g>(
    running: &mut RunningStage<'g>,
    architecture: &dyn Architecture,
    mut memory: Option<&mut MemoryCheckpoints<'g>>,
    audits: Option<Audits<'g>>,
) -> Result<(TrainerState, bool), LeaveReason> {
    let mut state = running.plan.trainer_state.clone();
    state.unwritten_record = None;
    state.begin_receipt(&running.plan.identity);
    let mut evaluation = None;
    if state.evaluation_due {
        let Some(losses) = evaluate_held_out(running)? else { return Ok((state, false)) };
        evaluation = Some(state.record_evaluation(losses));
    }
    let recorder = match running.context.is_leader() {
        true => Some(StepRecorder::open(running, architecture, evaluation)?),
        false => None,
    };
    if let Some(memory) = &mut memory {
        memory.begin_training(&running.stage, &state).map_err(|error| link_failure(running.member, error))?;
    }
    if running.context.is_leader() {
        running.context.stale_fences.begin(&running.context);
    }
    let writer = CheckpointWriter::new(running, architecture)?;
    std::thread::scope(|scope| {
        let (monitor, config) = (running.context.monitor, running.context.config);
        let held = running.snapshot.take();
        let save_schedule = SaveSchedule::start(scope, &writer, monitor, config, &running.stage, held)?;
        let environment_differences = state.environment_differences.clone();
        let mut training = TrainingLoop {
            running,
            state,
            save_schedule,
            recorder,
            memory,
            audits,
            idle_before: None,
            origin: Instant::now(),
            last_step: None,
            is_copying: true,
            environment_differences,
            regroups: false,
            wrong_step: None,
            data_wait: Duration::ZERO,
            no_data: None,
        };
        let trained = training.run();
        let TrainingLoop { running, state, save_schedule, regroups, wrong_step, no_data, .. } = training;
        running.snapshot = save_schedule.into_held();
        if let Some(step) = wrong_step {
            quarantine_wrong_checkpoints(running, step);
        }
        match (trained, no_data) {
            (Ok(()), Some(error)) => Err(error.into()),
            (trained, _) => trained.map(|()| (state, regroups)),
        }
    })
}

/// Sets aside, on the leader, the checkpoints with the wrong result of `step`: moves them to `damaged/`. All stages
/// wait for the leader. Reports an error only as a message, so that the error does not hide the reason for which the
/// stage ends.
fn quarantine_wrong_checkpoints(running: &RunningStage, step: u64) {
    if running.context.is_leader() {
        let failed = |error| {
            vec![format!("the checkpoints after step {step} could not be moved to damaged/, and may be wrong: {error}")]
        };
        let messages = quarantine_from(running.context.volume, &running.plan.fence, step).unwrap_or_else(failed);
        running.context.monitor.notes(messages);
    }
    // no stage leaves before the leader has finished, because the loss of a stage may end the leader
    let _ = all_gather(running.member, topic::AUDIT, &());
}

/// The training of one group.
pub(in crate::train) struct TrainingLoop<'t, 'g, 's> {
    pub(in crate::train) running: &'t mut RunningStage<'g>,
    pub(in crate::train) state: TrainerState,
    pub(in crate::train) save_schedule: SaveSchedule<'s>,
    /// The recorder; `None` except on the leader.
    pub(in crate::train) recorder: Option<StepRecorder>,
    /// The memory checkpoints, if the job has them.
    pub(in crate::train) memory: Option<&'t mut MemoryCheckpoints<'g>>,
    /// The audits, if the job has them.
    pub(in crate::train) audits: Option<Audits<'g>>,
    /// The index of the action before which this stage waited longest in the last step.
    pub(in crate::train) idle_before: Option<usize>,
    /// The last instant at which all stages were at the same point of training. The times of a step are measured from
    /// this instant.
    pub(in crate::train) origin: Instant,
    /// The duration of the last step.
    pub(in crate::train) last_step: Option<Duration>,
    /// Whether copies of the state are in transit during the step.
    pub(in crate::train) is_copying: bool,
    /// The environment differences, which the first record reports.
    pub(in crate::train) environment_differences: Vec<String>,
    /// Whether the group ends to form again with a replica that has returned.
    pub(in crate::train) regroups: bool,
    /// The step with a wrong result, if the group ends for that reason.
    pub(in crate::train) wrong_step: Option<u64>,
    /// The time for which the current step has waited for the data of the next step. Measured only on the leader of a
    /// job that streams its corpus.
    pub(in crate::train) data_wait: Duration,
    /// The error that prevents the leader from reading more data; `None` on other stages. The group drains, and then
    /// the leader fails with this error.
    pub(in crate::train) no_data: Option<StageError>,
}

/// The start of a step.
pub(in crate::train) struct StepStart {
    pub(in crate::train) step: u64,
    pub(in crate::train) at: Instant,
    pub(in crate::train) learning_rate: f64,
    pub(in crate::train) announced: StepAnnouncement,
}

impl TrainingLoop<'_, '_, '_> {
    /// Trains step by step to the end, or until the group drains.
    fn run(&mut self) -> Result<(), LeaveReason> {
        if self.running.has_trained(&self.state) && self.state.step > self.running.saved_step {
            // the volume lacks the last step, which only the memory checkpoint had
            self.save_schedule.save_final(&self.running.stage, &self.state, false)?;
        }
        if !self.announce(self.state.step)? {
            let message = "stopped before the data of the first step was available";
            return Err(StageError::new(FailureKind::Drained, message).into());
        }
        self.data_wait = Duration::ZERO; // this wait belongs to no step
        let mut is_over = self.no_data.is_some();
        while !self.running.has_trained(&self.state) && !is_over {
            is_over = self.step()?;
        }
        Ok(())
    }

    /// Trains one step and does the work after it. Returns true if it was the last step of this group.
    fn step(&mut self) -> Result<bool, LeaveReason> {
        let begun = self.begin()?;
        let output = self.execute(&begun)?;
        let Some(verdict) = output.verdict else {
            return Err(StageError::invalid("the leader's plan is wrong: a step without EXCHANGE").into());
        };
        if verdict.outcome == StepOutcome::Discard {
            self.drop_step(&begun, &verdict, output.broken_link)?;
            return Ok(true);
        }
        self.running.context.monitor.telemetry().group_finished_step(begun.step, begun.at.elapsed());
        let audit = self.end_audit()?;
        // the verdict implies that every stage has the copies of the previous step, so the record of that step may be
        // written
        self.write_record();
        let config = self.running.context.config;
        self.state.record_step(&verdict, begun.learning_rate, u64::from(config.training.global_batch_size));
        self.state.streams.clone_from(&begun.announced.streams);
        self.last_step = Some(begun.at.elapsed());
        let mut record = self.record(&begun, &verdict, output.decided_at.unwrap_or(begun.at));
        record.audit = audit.map(Box::new);
        let evaluation = self.evaluate(&verdict)?;
        let is_best =
            evaluation.as_ref().and_then(|evaluation| evaluation.best).is_some_and(|best| best.step == begun.step);
        evaluation.into_iter().for_each(|evaluation| record.set_evaluation(evaluation));
        if let Some(recorder) = &mut self.recorder {
            record = recorder.complete(self.running, &verdict, record);
        }
        self.state.unwritten_record = Some(Box::new(record));
        let is_trained = self.running.has_trained(&self.state);
        self.regroups = verdict.regroup && !is_trained;
        if self.regroups && self.running.context.is_leader() {
            let message =
                format!("a lost replica is back: after step {}, all stages form a new group with it", begun.step);
            self.running.note(message);
        }
        let is_last = verdict.stop || self.regroups || self.state.evaluation_due || is_trained;
        if !is_last {
            self.begin_audit(&begun)?;
        } else {
            let RunningStage { stage, links, verified, member, .. } = &mut *self.running;
            finish_gathers(stage, links, verified.training.placement.ranks(), &member.activity())
                .map_err(|error| link_failure(member, error))?;
        }
        self.copy_state(begun.announced.memory_checkpoint && !verdict.stop, is_last)?;
        if is_last {
            let drained = !is_trained || self.state.evaluation_due;
            self.save_schedule.save_final(&self.running.stage, &self.state, drained)?;
        } else {
            let keep = is_best && self.running.context.config.keeps_best();
            self.save_schedule.on_step_boundary(&verdict, keep, &self.running.stage, &self.state)?;
        }
        Ok(is_last)
    }

    /// Begins the next step: the leader announces the step after it, and all stages receive this step's layouts.
    fn begin(&mut self) -> Result<StepStart, LeaveReason> {
        let at = Instant::now();
        let RunningStage { context, .. } = *self.running;
        let index = self.state.step;
        context.monitor.set_step(index + 1);
        context.monitor.set_activity("DATA");
        self.announce(index + 1)?;
        let announced = StepAnnouncement::receive(self.running)?;
        let learning_rate = context.config.learning_rate(self.state.decay_steps_at(index)).at(index);
        Ok(StepStart { step: index + 1, at, learning_rate, announced })
    }

    /// Announces step `index` (from 0) on the leader, one step before the stages need the announcement. Returns false
    /// if a stop was requested before the step's data was available.
    fn announce(&mut self, index: u64) -> Result<bool, LeaveReason> {
        let Self { running, memory, .. } = self;
        let is_due = |step| memory.as_mut().is_some_and(|memory| memory.is_due(step));
        match StepAnnouncement::send(running, index, is_due)? {
            Announced::Sent(waited) => self.data_wait += waited.unwrap_or_default(),
            Announced::Stopping => return Ok(false),
            Announced::NoData(error) => {
                let message = format!("no step after step {index} can begin: {}", error.message);
                self.running.note(message);
                self.no_data = Some(error);
            }
        }
        Ok(true)
    }

    /// Loads the step's batch and executes its program, with the audit and the dump of the step.
    fn execute(&mut self, begun: &StepStart) -> Result<StepOutput, LeaveReason> {
        let Self { running, state, save_schedule, memory, audits, .. } = self;
        let monitor = running.context.monitor;
        let plan = match &running.data_loader {
            Some(data_loader) => {
                let keep_waiting = |_| running.member.wait_for_failure(Duration::ZERO).is_none();
                if !running.context.is_leader() {
                    data_loader.wait_for_step(state.step, &keep_waiting)?;
                }
                Some(data_loader.step_plan(state.step)?)
            }
            None => None,
        };
        let microbatches = running.verified.blocks.microbatches();
        let BatchTensors { token_ids, targets, rows } = match (&running.data_loader, &plan) {
            (Some(data_loader), Some(plan)) => data_loader.tensors(plan, microbatches.clone()),
            _ => BatchTensors::default(),
        };
        let save = save_schedule.save_vote(begun.step)?;
        let vote = StepVote {
            save_due: save.due,
            save_in_progress: save.in_progress,
            consecutive_skips: state.skips_in_a_row,
            ..StepVote::default()
        };
        let inputs = StepInputs {
            layouts: &begun.announced.layouts[microbatches],
            token_ids,
            targets,
            rows,
            target_count: begun.announced.tokens,
            blocks: &running.verified.blocks,
            loss_so_far: 0.0,
            step: Some(begun.step),
            learning_rate: begun.learning_rate,
            origin: self.origin,
            vote,
        };
        let mut recorder = audits.as_ref().and_then(|audits| audits.begin_step(begun.step, &running.stage));
        let mut dump = running.dump.clone().filter(|dump| dump.config.steps.contains(&begun.step));
        dump.iter().for_each(|dump| dump.begin(&running.stage));
        let probes = recorder.iter_mut().map(|recorder| recorder as &mut dyn StepProbe);
        let probes = probes.chain(dump.iter_mut().map(|dump| dump as &mut dyn StepProbe)).collect();
        let mut control = RunningStep {
            monitor,
            drain: save_schedule.drain_estimate(begun.at, self.last_step),
            has_no_data: self.no_data.is_some(),
            memory: memory.as_deref_mut(),
            audits: audits.as_mut(),
            idle_before: self.idle_before,
        };
        let output = run_programs(running, &running.verified.training, &inputs, &mut control, probes)?;
        if let Some(dump) = &dump {
            write_dump(dump, &running.stage, begun.step)?;
        }
        if let Some(audits) = audits {
            audits.keep(recorder);
            let decided = output.decided_at.map_or(0.0, |at| at.saturating_duration_since(self.origin).as_secs_f64());
            let program = &running.verified.training.ranks[running.stage.index];
            self.idle_before = longest_wait(program, &output.spans, decided);
        }
        Ok(output)
    }
}
