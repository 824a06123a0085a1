//! The checkpoint thread, and the staging buffer: the copy of a stage's state from which the thread writes a
//! checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::Snapshot;
use stagecoach_group::name_thread;
use stagecoach_planner::TrainerState;
use stagecoach_telemetry::SaveRecord;

use super::writer::CheckpointWriter;
use crate::train::leave::LeaveReason;
use crate::train::monitor::StageMonitor;
use crate::train::recover::carry_over::LastSnapshot;

/// The main thread's handle to the checkpoint thread.
pub(in crate::train) struct CheckpointThread {
    requests: Sender<SaveRequest>,
    done: Receiver<SaveDone>,
    /// The number of activities of the thread so far. If it changes, the thread makes progress.
    activity_count: Arc<AtomicU64>,
    /// The staging buffer for the next copy; `None` while the thread writes from it.
    staging: Option<Snapshot>,
    /// The step after which the staging buffer was last filled; `None` before the first copy.
    held_step: Option<u64>,
}

/// The request to write a staged copy.
struct SaveRequest {
    snapshot: Snapshot,
    state: TrainerState,
    record: SaveRecord,
    started: Instant,
}

/// The staging buffer and the result of the save.
struct SaveDone {
    staging: Snapshot,
    result: Result<SaveRecord, LeaveReason>,
}

impl CheckpointThread {
    /// Starts the thread in `scope`, with a staging buffer for the tensors of `stage`. If `held` has the buffer of an
    /// earlier thread of this stage, the thread reuses it.
    pub(in crate::train) fn start<'scope, 's>(
        scope: &'scope Scope<'scope, 's>,
        writer: &'s CheckpointWriter<'s>,
        stage: &Stage,
        held: Option<LastSnapshot>,
    ) -> Result<CheckpointThread, LeaveReason> {
        let (requests, inbox) = channel::<SaveRequest>();
        let (outbox, done) = channel();
        let activity_count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&activity_count);
        let work = move || {
            let activity = |what: &str| {
                name_thread(what);
                counter.fetch_add(1, Ordering::Relaxed);
            };
            for SaveRequest { snapshot, state, record, started } in inbox {
                let copied = snapshot.wait().map_err(LeaveReason::from);
                let result = copied.and_then(|()| writer.try_save(&snapshot, &state, &activity)).map(|saved| {
                    let stall_seconds = record.stall_seconds + snapshot.stall().as_secs_f64();
                    writer.report_result(SaveRecord { stall_seconds, ..record }, started, saved)
                });
                activity("saver");
                if outbox.send(SaveDone { staging: snapshot, result }).is_err() {
                    break; // the stage is ending
                }
            }
        };
        let spawned = Builder::new().name("saver".into()).spawn_scoped(scope, work);
        spawned
            .map_err(|e| StageError::new(FailureKind::Error, format!("could not start the checkpoint thread: {e}")))?;
        let held_step = held.as_ref().map(|held| held.step);
        let staging = held.map_or_else(|| Snapshot::empty_buffer(stage), |held| Ok(held.snapshot));
        let staging = Some(staging?);
        Ok(CheckpointThread { requests, done, activity_count, staging, held_step })
    }

    /// Whether the thread was still writing the last copy at the last call of [`CheckpointThread::poll`].
    pub(in crate::train) fn is_writing(&self) -> bool {
        self.staging.is_none()
    }

    /// Copies the tensors of `stage` to the staging buffer, and requests the thread to write them.
    pub(in crate::train) fn write(
        &mut self,
        stage: &Stage,
        state: &TrainerState,
        mut record: SaveRecord,
        started: Instant,
    ) -> Result<(), LeaveReason> {
        // the group decides to save only if no stage is writing, so the buffer is free
        let Some(mut snapshot) = self.staging.take() else { return Err(thread_ended_error()) };
        snapshot.copy_from(stage)?;
        self.held_step = Some(state.step);
        record.stall_seconds = started.elapsed().as_secs_f64();
        self.requests
            .send(SaveRequest { snapshot, state: state.clone(), record, started })
            .map_err(|_| thread_ended_error())
    }

    /// Returns the result of the save in progress, if it has finished.
    ///
    /// # Errors
    /// If the save has failed with an error that must end the stage.
    pub(in crate::train) fn poll(&mut self) -> Result<Option<SaveRecord>, LeaveReason> {
        match self.done.try_recv() {
            Ok(done) => self.receive_done(done).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(thread_ended_error()),
        }
    }

    /// Waits for the save in progress, if there is one. Reports progress in heartbeats, so that the wait is not
    /// mistaken for a hang.
    ///
    /// # Errors
    /// Like [`CheckpointThread::poll`].
    pub(in crate::train) fn wait(&mut self, monitor: &StageMonitor) -> Result<(), LeaveReason> {
        let mut last_seen = None;
        while self.staging.is_none() {
            match self.done.recv_timeout(Duration::from_secs(1)) {
                Ok(done) => drop(self.receive_done(done)?),
                Err(RecvTimeoutError::Timeout) => {
                    let count = self.activity_count.load(Ordering::Relaxed);
                    if last_seen.replace(count) != Some(count) {
                        monitor.set_activity("waiting for the checkpoint in flight");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(thread_ended_error()),
            }
        }
        Ok(())
    }

    /// Fills the staging buffer with the tensors of `stage` after `step`, and returns the buffer once the copy is
    /// complete. The thread must not be writing.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub(in crate::train) fn stage_now(&mut self, stage: &Stage, step: u64) -> Result<&Snapshot, LeaveReason> {
        let Some(snapshot) = self.staging.as_mut() else { return Err(thread_ended_error()) };
        snapshot.copy_from(stage)?;
        snapshot.wait()?;
        self.held_step = Some(step);
        Ok(snapshot)
    }

    /// Ends the thread, which finishes or abandons its write. Returns the last copy, if there is one.
    pub(in crate::train) fn into_held(self) -> Option<LastSnapshot> {
        drop(self.requests);
        let staging = self.staging.or_else(|| Some(self.done.recv().ok()?.staging));
        let (step, snapshot) = self.held_step.zip(staging)?;
        snapshot.wait().ok()?; // an incomplete copy is of no use
        Some(LastSnapshot { step, snapshot })
    }

    fn receive_done(&mut self, SaveDone { staging, result }: SaveDone) -> Result<SaveRecord, LeaveReason> {
        self.staging = Some(staging);
        result
    }
}

fn thread_ended_error() -> LeaveReason {
    StageError::new(FailureKind::Error, "the checkpoint thread exited unexpectedly: this is a bug").into()
}
