//! The thread that writes a checkpoint behind training, and the memory that it writes from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_group::name_thread;

use super::Watch;
use super::save::Writer;
use crate::execute::Stage;
use crate::fatal::Fatal;
use crate::observe::SaveRecord;
use crate::plan::Progress;
use crate::state::Snapshot;

/// What goes to the thread and comes back.
pub(super) struct Behind {
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
    /// Starts the thread in `scope`, with memory for what `stage` saves.
    pub(super) fn start<'scope, 's>(
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
                let result = writer.save(&snapshot, &progress, &doing, record, started);
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

    /// Whether the last copy is still being written, as far as [`Behind::poll`] knows.
    pub(super) fn is_writing(&self) -> bool {
        self.room.is_none()
    }

    /// Copies the stage's tensors and has them written.
    pub(super) fn write(
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
    ///
    /// # Errors
    /// What ended it and must end the stage.
    pub(super) fn poll(&mut self) -> Result<Option<SaveRecord>, Fatal> {
        match self.done.try_recv() {
            Ok(done) => self.take(done).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }

    /// Waits for the save in flight, if there is one. Heartbeats tell how far it is, so that it never looks like a hang.
    ///
    /// # Errors
    /// As [`Behind::poll`].
    pub(super) fn wait(&mut self, watch: &Watch) -> Result<(), Fatal> {
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
