//! The state that the threads of a stage share: the stop request, the activity (the current work, which heartbeats
//! report), events, and the exit of the process. Any thread may request the exit after a lost group, a panic or a
//! signal.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stagecoach_api::contract::{FailureKind, StageEnv, StagePhase, TerminationMessage, env};
use stagecoach_group::Activity;
use stagecoach_telemetry::{EventWriter, StageTelemetry, TrainingEvent, flush};

use crate::train::recover::out_of_memory::explain;

/// The minimum interval between reports of the preparation's progress.
pub(in crate::train) const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// A stage's state, shared by its threads.
#[derive(Clone)]
pub(crate) struct StageMonitor(Arc<SharedMonitor>);

struct SharedMonitor {
    stop_requested_at: OnceLock<Instant>,
    formed: AtomicBool,
    telemetry: StageTelemetry,
    event_writer: EventWriter,
    state: Mutex<MonitorState>,
}

#[derive(Debug, Default)]
struct MonitorState {
    activity: Option<Activity>,
    phase: String,
    step: Option<u64>,
    planned_bytes: Option<u64>,
    ended: bool,
}

impl StageMonitor {
    /// Creates the monitor of the stage that `env` describes.
    pub(crate) fn new(env: &StageEnv) -> StageMonitor {
        StageMonitor(Arc::new(SharedMonitor {
            stop_requested_at: OnceLock::new(),
            formed: AtomicBool::new(false),
            telemetry: StageTelemetry::new(env),
            event_writer: EventWriter::from_env(),
            state: Mutex::default(),
        }))
    }

    /// Returns the state behind `/status` and `/metrics`.
    pub(crate) fn telemetry(&self) -> &StageTelemetry {
        &self.0.telemetry
    }

    /// Emits an event to the log and to `/status`.
    pub(crate) fn emit(&self, event: &TrainingEvent) {
        self.telemetry().record(event);
        self.event_writer().emit(event);
    }

    /// Emits a note.
    pub(crate) fn note(&self, message: impl Into<String>) {
        self.emit(&TrainingEvent::Note { message: message.into() });
    }

    /// Emits each message as a note.
    pub(crate) fn notes(&self, messages: impl IntoIterator<Item = String>) {
        messages.into_iter().for_each(|message| self.note(message));
    }

    /// Emits the progress of the preparation before the first step.
    pub(crate) fn preparing(&self, what: &str, done: u64, total: u64) {
        self.emit(&TrainingEvent::Preparing { what: what.to_owned(), done, total });
    }

    /// Returns the writer of the log, for events that `/status` does not show.
    pub(crate) fn event_writer(&self) -> &EventWriter {
        &self.0.event_writer
    }

    /// Returns the time of the request to stop, if there was one.
    pub(crate) fn stop_requested_at(&self) -> Option<Instant> {
        self.0.stop_requested_at.get().copied()
    }

    /// Handles SIGTERM. The stage stops after the current step, or before the step's end if there is no time to finish
    /// the step. Before the first step, the stage exits at once.
    pub(crate) fn request_stop(&self) {
        self.0.stop_requested_at.get_or_init(Instant::now);
        // This fence pairs with the fence in `set_forming`. Either this call sees that there is no group, or the thread
        // that forms a group sees the request.
        fence(Ordering::SeqCst);
        self.0.telemetry.set_phase(StagePhase::Draining);
        if !self.0.formed.load(Ordering::Relaxed) {
            self.exit(FailureKind::Drained, "asked to stop before training began");
        }
    }

    /// Records that the group has formed. Exits if a stop was requested before.
    pub(crate) fn set_formed(&self) {
        self.0.formed.store(true, Ordering::Relaxed);
        self.0.telemetry.group_loaded();
        self.0.telemetry.set_phase(StagePhase::Training);
        if self.stop_requested_at().is_some() {
            self.exit(FailureKind::Drained, "asked to stop before training began");
        }
    }

    /// Records that the stage is in no formed group, before its first group or after a group has ended.
    pub(crate) fn set_forming(&self) {
        self.0.telemetry.group_lost();
        if self.0.formed.swap(false, Ordering::Relaxed) {
            self.0.telemetry.set_phase(StagePhase::Forming);
        }
        fence(Ordering::SeqCst); // pairs with the fence in `request_stop`
    }

    /// Attaches the activity that heartbeats report. Later calls of [`StageMonitor::set_activity`] update it.
    pub(crate) fn attach_activity(&self, activity: Activity) {
        self.state().activity = Some(activity);
    }

    /// Sets the current activity of a stage that is not running the program of a step.
    pub(crate) fn set_activity(&self, what: &str) {
        let mut state = self.state();
        state.phase = what.to_owned();
        if let Some(activity) = &state.activity {
            activity.set(what, None);
        }
    }

    /// Sets the current step.
    pub(crate) fn set_step(&self, step: u64) {
        self.state().step = Some(step);
    }

    /// Returns the step in progress or the last step; `None` before the first step.
    pub(crate) fn step(&self) -> Option<u64> {
        self.state().step
    }

    /// Sets the planned peak memory of the stage, in bytes.
    pub(crate) fn set_planned_bytes(&self, bytes: Option<u64>) {
        self.state().planned_bytes = bytes;
    }

    /// Exits because a thread has panicked with `message`.
    pub(crate) fn exit_after_panic(&self, message: &str) -> ! {
        let planned_bytes = self.state().planned_bytes;
        match explain(message, planned_bytes) {
            Some(explained) => self.exit(FailureKind::OutOfMemory, &explained),
            None => self.exit(FailureKind::Error, &message.lines().take(3).collect::<Vec<_>>().join(" ")),
        }
    }

    /// Exits the process with `kind`'s exit code and a termination message. The first call ends the process, and later
    /// calls wait for its end.
    pub(crate) fn exit(&self, kind: FailureKind, message: &str) -> ! {
        let mut state = self.state();
        if !state.ended {
            state.ended = true;
            let status = self.0.telemetry.snapshot();
            let mut report = TerminationMessage::new(kind, status.stage, message);
            report.step = state.step;
            report.checkpoint = status.checkpoint;
            report.progress = Some(status.progress).filter(|progress| progress.step > 0);
            // After a failed allocation, the message names the activity that the host set last, because the host
            // allocates memory ahead of the device. After any other failure, the message names the current activity of
            // the device.
            let activity = if kind == FailureKind::OutOfMemory { Activity::last_set } else { Activity::text };
            let action = state.activity.as_ref().map_or_else(|| state.phase.clone(), activity);
            report.action = (!action.is_empty()).then_some(action);
            write_termination_message(&report);
            if !matches!(kind, FailureKind::Done) {
                // If the log is on a full volume, `eprintln!` would panic. The panic hook would then wait for ever for
                // the lock that this function holds.
                let name = status.spare.map_or(format!("stage {}", status.stage), |spare| format!("spare {spare}"));
                let _ = writeln!(std::io::stderr(), "{name}: {message}");
            }
            if matches!(kind, FailureKind::Done | FailureKind::Drained) {
                flush(&self.0.telemetry);
            }
            stagecoach_os::exit_now(kind.exit_code().code())
        }
        drop(state);
        loop {
            std::thread::park();
        }
    }

    fn state(&self) -> MutexGuard<'_, MonitorState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a termination message to the path that the kubelet or the launcher reads.
pub(crate) fn write_termination_message(message: &TerminationMessage) {
    let path = std::env::var_os(env::TERMINATION_LOG).map_or_else(|| "/dev/termination-log".into(), PathBuf::from);
    if let Err(error) = std::fs::write(&path, message.to_json()) {
        tracing::debug!("no termination message at {}: {error}", path.display());
    }
}
