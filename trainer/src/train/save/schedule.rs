//! The schedule of saves. A save starts at a step boundary. Depending on `checkpoint.mode`, the save runs on the
//! checkpoint thread, or training waits for it. At most one save is in progress. A save that becomes due during another
//! save is deferred to the first boundary at which no stage is writing.

use std::thread::Scope;
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::CheckpointMode;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::Snapshot;
use stagecoach_group::Verdict;
use stagecoach_lifecycle::FailurePolicy;
use stagecoach_planner::{JobConfig, TrainerState};
use stagecoach_telemetry::SaveRecord;

use super::thread::CheckpointThread;
use super::writer::CheckpointWriter;
use crate::train::StageMonitor;
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::LastSnapshot;
use crate::train::save::drain::{DrainEstimate, drain_timeout};

/// A rank's vote about saving after a step.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::train) struct SaveVote {
    /// Whether a save is due.
    pub(in crate::train) due: bool,
    /// Whether this rank is still writing the previous checkpoint.
    pub(in crate::train) in_progress: bool,
}

/// Decides at each step boundary, from the group's verdict, whether to save.
pub(in crate::train) struct SaveSchedule<'s> {
    writer: &'s CheckpointWriter<'s>,
    monitor: &'s StageMonitor,
    every: u64,
    /// The time after a stop request within which the stage must save the checkpoint.
    drain_timeout: Duration,
    /// The time limit for retries of the save at the end of training.
    final_save_timeout: Duration,
    /// The checkpoint thread, if the job saves asynchronously.
    thread: Option<CheckpointThread>,
    /// The step at which a deferred save became due.
    deferred_step: Option<u64>,
    /// The result of the last save, until the metrics record it.
    record: Option<SaveRecord>,
    /// The duration of the last save.
    last_save: Option<Duration>,
}

impl<'s> SaveSchedule<'s> {
    /// Creates the schedule of `stage`. A thread of `scope` writes asynchronous saves.
    pub(in crate::train) fn start<'scope>(
        scope: &'scope Scope<'scope, 's>,
        writer: &'s CheckpointWriter<'s>,
        monitor: &'s StageMonitor,
        config: &JobConfig,
        stage: &Stage,
        held: Option<LastSnapshot>,
    ) -> Result<SaveSchedule<'s>, LeaveReason> {
        let spec = &config.job.spec;
        let every = spec.checkpoint.every_steps;
        let thread = match spec.checkpoint.mode {
            CheckpointMode::Async if every > 0 => Some(CheckpointThread::start(scope, writer, stage, held)?),
            _ => None,
        };
        let drain_timeout = drain_timeout(Duration::from_secs(FailurePolicy::for_processes(spec).grace_seconds));
        let final_save_timeout = Duration::from_secs(spec.restart.stall_timeout_seconds.into());
        Ok(SaveSchedule {
            writer,
            monitor,
            every,
            drain_timeout,
            final_save_timeout,
            thread,
            deferred_step: None,
            record: None,
            last_save: None,
        })
    }

    /// Returns this rank's vote: whether a save is due after `step`, and whether this rank is still writing the
    /// previous checkpoint.
    ///
    /// # Errors
    /// If a background save has failed with an error that must end the stage.
    pub(in crate::train) fn save_vote(&mut self, step: u64) -> Result<SaveVote, LeaveReason> {
        let in_progress = match &mut self.thread {
            Some(thread) => {
                if let Some(done) = thread.poll()? {
                    self.last_save = Duration::try_from_secs_f64(done.seconds).ok();
                    self.record = Some(done);
                }
                thread.is_writing()
            }
            None => false,
        };
        Ok(SaveVote { due: self.due_step(step).is_some(), in_progress })
    }

    /// Returns the estimate that decides whether a step that began at `step_started` is finished or abandoned after a
    /// stop request. `step` is the duration of the previous step, if there was one.
    pub(in crate::train) fn drain_estimate(&self, step_started: Instant, step: Option<Duration>) -> DrainEstimate {
        let is_saving = self.thread.as_ref().is_some_and(CheckpointThread::is_writing);
        DrainEstimate { timeout: self.drain_timeout, step_started, step, save: self.last_save, is_saving }
    }

    /// Returns the result of the last save, if it has not been taken yet.
    pub(in crate::train) fn take_record(&mut self) -> Option<SaveRecord> {
        self.record.take()
    }

    /// Saves after step `state.step`, or starts a background save, if the group has decided to save. With `keep`,
    /// always saves the step, and first waits for the save in progress. All ranks pass the same `keep`.
    ///
    /// # Errors
    /// If the group has failed, or a newer group has acquired the fence.
    pub(in crate::train) fn on_step_boundary(
        &mut self,
        verdict: &Verdict,
        keep: bool,
        stage: &Stage,
        state: &TrainerState,
    ) -> Result<(), LeaveReason> {
        let Some(due) = self.due_step(state.step).or(keep.then_some(state.step)) else { return Ok(()) };
        if keep {
            if let Some(thread) = &mut self.thread {
                thread.wait(self.monitor)?;
            }
        } else if !verdict.save {
            if self.deferred_step.replace(due).is_none() {
                let message =
                    format!("the checkpoint due at step {due} is deferred: the previous one is still being written");
                self.writer.note(message);
            }
            return Ok(());
        }
        self.deferred_step = None;
        let record = SaveRecord { step: state.step, due, ..SaveRecord::default() };
        let started = Instant::now();
        match &mut self.thread {
            Some(thread) => {
                self.monitor.set_activity("SNAPSHOT");
                thread.write(stage, state, record, started)?;
            }
            None => {
                let on_activity = |what: &str| self.monitor.set_activity(what);
                let mut record = self.writer.save(&Snapshot::of(stage), state, &on_activity, record, started)?;
                record.stall_seconds = record.seconds;
                self.last_save = Duration::try_from_secs_f64(record.seconds).ok();
                self.record = Some(record);
            }
        }
        Ok(())
    }

    /// Saves at the end of this group's training, and retries until the deadline. `drained` is whether the group ends
    /// before training does, for example because a stop was requested.
    ///
    /// # Errors
    /// Like [`SaveSchedule::on_step_boundary`]. Also if the save did not succeed in time.
    pub(in crate::train) fn save_final(
        &mut self,
        stage: &Stage,
        state: &TrainerState,
        drained: bool,
    ) -> Result<(), LeaveReason> {
        let started = Instant::now();
        let deadline = match self.monitor.stop_requested_at().filter(|_| drained) {
            Some(requested_at) => requested_at + self.drain_timeout,
            None => started + if drained { self.drain_timeout } else { self.final_save_timeout },
        };
        if let Some(thread) = &mut self.thread {
            thread.wait(self.monitor)?;
        }
        let on_activity = |what: &str| self.monitor.set_activity(what);
        let of_stage;
        let snapshot = match &mut self.thread {
            // the staging buffer is reused, because the host's memory has room for only one copy of a GPU's state
            Some(thread) if stage.gpu.is_some() => thread.stage_now(stage, state.step)?,
            _ => {
                of_stage = Snapshot::of(stage);
                &of_stage
            }
        };
        let saved = self.writer.save_until(snapshot, state, &on_activity, deadline)?;
        if let Err(why) = saved {
            let message = format!("the checkpoint of step {} could not be saved: {why}", state.step);
            return Err(StageError::new(FailureKind::Storage, message).into());
        }
        let stall_seconds = started.elapsed().as_secs_f64();
        let record = SaveRecord { step: state.step, due: state.step, stall_seconds, ..SaveRecord::default() };
        self.writer.report_result(record, started, saved);
        Ok(())
    }

    /// Ends the background saves. Returns the last snapshot, if there is one.
    pub(in crate::train) fn into_held(self) -> Option<LastSnapshot> {
        self.thread?.into_held()
    }

    /// Returns the step at which the save after `step` became due, if a save is due.
    fn due_step(&self, step: u64) -> Option<u64> {
        self.deferred_step.or((self.every > 0 && step.is_multiple_of(self.every)).then_some(step))
    }
}
