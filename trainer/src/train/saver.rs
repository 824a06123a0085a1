//! When checkpoints are saved: copied at a boundary and written behind training, or written at once. At most one is in
//! flight; one that falls due meanwhile waits for the first boundary at which no stage writes any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::CheckpointMode;
use stagecoach_group::{Verdict, name_thread};
use stagecoach_lifecycle::Policy;

use super::Watch;
use super::save::{Part, Writer};
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
        let grace = Duration::from_secs(Policy::for_processes(spec).grace).mul_f64(SHARE_OF_GRACE);
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
                behind.room.is_none()
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
                let mut record = save(self.writer, &Snapshot::of(stage), progress, &doing, record, started)?;
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
        conclude(self.writer, record, started, saved);
        Ok(())
    }

    /// The step at which the save that would happen after `step` fell due.
    fn due(&self, step: u64) -> Option<u64> {
        self.waiting.or((self.every > 0 && step.is_multiple_of(self.every)).then_some(step))
    }
}

/// Saves once, and tells what came of it.
fn save(
    writer: &Writer,
    snapshot: &Snapshot,
    progress: &Progress,
    doing: &dyn Fn(&str),
    mut record: SaveRecord,
    started: Instant,
) -> Result<SaveRecord, Fatal> {
    let before = cpu_seconds();
    let saved = writer.save(snapshot, progress, doing)?;
    record.cpu_seconds = cpu_seconds() - before;
    Ok(conclude(writer, record, started, saved))
}

/// Processor time of this thread.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Tells what came of a save.
fn conclude(writer: &Writer, mut record: SaveRecord, started: Instant, saved: Part<u64>) -> SaveRecord {
    record.seconds = started.elapsed().as_secs_f64();
    match saved {
        Ok(bytes) => {
            record.bytes = bytes;
            writer.tell(&Event::Saved(record.clone()));
        }
        Err(why) => {
            record.error = Some(why);
            writer.tell(&Event::SaveFailed(record.clone()));
        }
    }
    record
}

/// The thread that writes behind training, and what goes to and fro.
struct Behind {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    /// Moves with everything the thread does.
    turns: Arc<AtomicU64>,
    /// The memory to copy into; none while it is being written from.
    room: Option<Snapshot>,
}

/// A copy to be written.
struct Job {
    snapshot: Snapshot,
    progress: Progress,
    record: SaveRecord,
    started: Instant,
}

/// The memory back, and what has come of the save.
struct Done {
    room: Snapshot,
    result: Result<SaveRecord, Fatal>,
}

impl Behind {
    fn start<'scope, 's>(
        scope: &'scope Scope<'scope, 's>,
        writer: &'s Writer<'s>,
        stage: &Stage,
    ) -> Result<Behind, Fatal> {
        let (jobs, inbox) = channel::<Job>();
        let (outbox, done) = channel();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&turns);
        let work = move || {
            let doing = |what: &str| {
                name_thread(what);
                counted.fetch_add(1, Ordering::Relaxed);
            };
            for Job { snapshot, progress, record, started } in inbox {
                let result = save(writer, &snapshot, &progress, &doing, record, started);
                doing("saver");
                if outbox.send(Done { room: snapshot, result }).is_err() {
                    break; // the stage is ending
                }
            }
        };
        let spawned = Builder::new().name("saver".into()).spawn_scoped(scope, work);
        spawned.map_err(|e| Fatal::new(FailureKind::Error, format!("could not start the thread that saves: {e}")))?;
        Ok(Behind { jobs, done, turns, room: Some(Snapshot::room_for(stage)) })
    }

    /// Copies the stage's tensors and has them written.
    fn write(
        &mut self,
        stage: &Stage,
        progress: &Progress,
        mut record: SaveRecord,
        started: Instant,
    ) -> Result<(), Fatal> {
        // the group agreed to save, and it does so only if no stage is writing
        let Some(mut snapshot) = self.room.take() else { return Err(gone()) };
        snapshot.copy_from(stage);
        record.stall_seconds = started.elapsed().as_secs_f64();
        self.jobs.send(Job { snapshot, progress: progress.clone(), record, started }).map_err(|_| gone())
    }

    /// What has come of the save in flight, if it is over.
    fn poll(&mut self) -> Result<Option<SaveRecord>, Fatal> {
        match self.done.try_recv() {
            Ok(done) => self.take(done).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }

    /// Waits for the save in flight, if there is one. Heartbeats tell how far it is, so that it never looks like a hang.
    fn wait(&mut self, watch: &Watch) -> Result<(), Fatal> {
        let mut seen = None;
        while self.room.is_none() {
            match self.done.recv_timeout(Duration::from_secs(1)) {
                Ok(done) => drop(self.take(done)?),
                Err(RecvTimeoutError::Timeout) => {
                    let turns = self.turns.load(Ordering::Relaxed);
                    if seen.replace(turns) != Some(turns) {
                        watch.doing("waiting for the checkpoint in flight");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
        Ok(())
    }

    fn take(&mut self, Done { room, result }: Done) -> Result<SaveRecord, Fatal> {
        self.room = Some(room);
        result
    }
}

fn gone() -> Fatal {
    Fatal::new(FailureKind::Error, "the thread that saves checkpoints has ended: this is a defect of the trainer")
}
