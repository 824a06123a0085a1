//! When checkpoints are saved: copied at a boundary and written behind training, or written at once. At most one is in
//! flight; one that falls due meanwhile waits for the first boundary at which no stage writes any more.

use std::thread::Scope;
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::CheckpointMode;
use stagecoach_group::Verdict;
use stagecoach_lifecycle::Policy;

use super::Watch;
use super::behind::Behind;
use super::save::Writer;
use crate::execute::Stage;
use crate::fatal::Fatal;
use crate::observe::{Event, SaveRecord};
use crate::plan::{Progress, Settings};
use crate::state::Snapshot;

/// The share of a graceful stop's time that its save may take: what is left is for leaving.
const SHARE_OF_GRACE: f64 = 0.8;

/// Decides at each boundary, from what all ranks know, whether to save.
pub(super) struct Saver<'s> {
    writer: &'s Writer<'s>,
    watch: &'s Watch,
    every: u64,
    /// How long the save of a graceful stop is tried.
    grace: Duration,
    /// And the one at the end of training.
    patience: Duration,
    /// Writes behind training, if the job says so.
    behind: Option<Behind>,
    /// The step at which the save that waits fell due.
    waiting: Option<u64>,
    /// What came of the last one, until the metrics have it.
    record: Option<SaveRecord>,
}

impl<'s> Saver<'s> {
    /// For `stage`; a thread of `scope` writes if the job saves behind training.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, 's>,
        writer: &'s Writer<'s>,
        watch: &'s Watch,
        settings: &Settings,
        stage: &Stage,
    ) -> Result<Saver<'s>, Fatal> {
        let spec = &settings.job.spec;
        let every = spec.checkpoint.every_steps;
        let behind = match spec.checkpoint.mode {
            CheckpointMode::Async if every > 0 => Some(Behind::start(scope, writer, stage)?),
            _ => None,
        };
        let grace = Duration::from_secs(Policy::for_processes(spec).grace_seconds).mul_f64(SHARE_OF_GRACE);
        let patience = Duration::from_secs(spec.restart.stall_timeout_seconds.into());
        Ok(Saver { writer, watch, every, grace, patience, behind, waiting: None, record: None })
    }

    /// Whether a save is due after `step`, and whether this rank still writes one: for its vote.
    ///
    /// # Errors
    /// What ended a save behind training and must end the stage.
    pub(super) fn ask(&mut self, step: u64) -> Result<(bool, bool), Fatal> {
        let saving = match &mut self.behind {
            Some(behind) => {
                let done = behind.poll()?;
                self.record = done.or(self.record.take());
                behind.is_writing()
            }
            None => false,
        };
        Ok((self.due(step).is_some(), saving))
    }

    /// What came of the last save, once.
    pub(super) fn take_record(&mut self) -> Option<SaveRecord> {
        self.record.take()
    }

    /// Saves at the boundary after `progress.step`, or begins to, if the group has agreed to.
    ///
    /// # Errors
    /// If the group is gone, or a newer one has taken the job over.
    pub(super) fn boundary(&mut self, verdict: &Verdict, stage: &Stage, progress: &Progress) -> Result<(), Fatal> {
        let Some(due) = self.due(progress.step) else { return Ok(()) };
        if !verdict.save {
            if self.waiting.replace(due).is_none() {
                let message = format!("the checkpoint due at step {due} waits: the one before is still being written");
                self.writer.tell(&Event::Note { message });
            }
            return Ok(());
        }
        self.waiting = None;
        let record = SaveRecord { step: progress.step, due, ..SaveRecord::default() };
        let started = Instant::now();
        match &mut self.behind {
            Some(behind) => {
                self.watch.doing("SNAPSHOT");
                behind.write(stage, progress, record, started)?;
            }
            None => {
                let doing = |what: &str| self.watch.doing(what);
                let mut record = self.writer.save(&Snapshot::of(stage), progress, &doing, record, started)?;
                record.stall_seconds = record.seconds;
                self.record = Some(record);
            }
        }
        Ok(())
    }

    /// Saves where this group's training ends, however often that must be tried: `drained` if it was asked to stop.
    ///
    /// # Errors
    /// As [`Saver::boundary`], and if the save did not succeed in time.
    pub(super) fn last(&mut self, stage: &Stage, progress: &Progress, drained: bool) -> Result<(), Fatal> {
        let started = Instant::now();
        let deadline = started + if drained { self.grace } else { self.patience };
        if let Some(behind) = &mut self.behind {
            behind.wait(self.watch)?;
        }
        let doing = |what: &str| self.watch.doing(what);
        let saved = self.writer.save_by(&Snapshot::of(stage), progress, &doing, deadline)?;
        if let Err(why) = saved {
            let message = format!("the checkpoint of step {} could not be saved: {why}", progress.step);
            return Err(Fatal::new(FailureKind::Storage, message));
        }
        let stall_seconds = started.elapsed().as_secs_f64();
        let record = SaveRecord { step: progress.step, due: progress.step, stall_seconds, ..SaveRecord::default() };
        self.writer.conclude(record, started, saved);
        Ok(())
    }

    /// The step at which the save that would happen after `step` fell due.
    fn due(&self, step: u64) -> Option<u64> {
        self.waiting.or((self.every > 0 && step.is_multiple_of(self.every)).then_some(step))
    }
}
