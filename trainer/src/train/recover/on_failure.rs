//! A stage's reaction to the failure of its group: it returns to the rendezvous, where the stages form the next group,
//! or it exits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use stagecoach_api::contract::FailureKind;
use stagecoach_group::{GroupFailure, Roster};
use stagecoach_telemetry::TrainingEvent;
use stagecoach_transport::Interrupt;

use crate::train::StageMonitor;
use crate::train::context::StageContext;

/// Handles the failure of one group, on the thread that receives the group's messages.
pub(in crate::train) struct FailureHandler {
    monitor: StageMonitor,
    /// The interrupt that ends the stage's waits on its links.
    interrupt: Interrupt,
    /// The time for which the stages wait for the next group; `None` if the loss of one stage ends all stages.
    reform_timeout: Option<Duration>,
    /// The incarnation of each rank, which is the number of its process in the attempt; unset until the roster is
    /// known.
    incarnations: OnceLock<Vec<Option<u32>>>,
    /// The failure that ended the group.
    failure: OnceLock<GroupFailure>,
    /// Whether the stage is leaving the group, so that a failure of the group does not affect it.
    is_leaving: AtomicBool,
    /// The channel that disconnects as soon as the stage has returned to the rendezvous.
    unwound: Mutex<Option<Receiver<()>>>,
}

impl FailureHandler {
    /// Creates the handler, and a guard that the caller drops when the stage has returned to the rendezvous.
    pub(in crate::train) fn new(context: &StageContext, interrupt: Interrupt) -> (FailureHandler, Sender<()>) {
        let (in_group, unwound) = channel();
        let handler = FailureHandler {
            monitor: context.monitor.clone(),
            interrupt,
            reform_timeout: context.reform_timeout(),
            incarnations: OnceLock::new(),
            failure: OnceLock::new(),
            is_leaving: AtomicBool::new(false),
            unwound: Mutex::new(Some(unwound)),
        };
        (handler, in_group)
    }

    /// Records the roster, the members of the group, when the stage has joined the group.
    pub(in crate::train) fn set_roster(&self, roster: &Roster) {
        let _ = self.incarnations.set(roster.incarnations());
    }

    /// Records that the stage leaves. From then on, a failure of the group does not affect the stage.
    pub(in crate::train) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Returns the failure that ended the group, if the group failed before this stage left.
    pub(in crate::train) fn failure(&self) -> Option<&GroupFailure> {
        self.failure.get()
    }

    /// Interrupts the stage, so that it returns to the rendezvous. Exits if this stage is the cause of the failure, or
    /// if there will be no next group.
    pub(in crate::train) fn handle(&self, failure: GroupFailure) {
        if self.is_leaving.load(Ordering::Relaxed) {
            return;
        }
        if failure.is_root_cause() {
            self.monitor.exit(FailureKind::Stalled, &failure.message);
        }
        let unwound = self.unwound.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(timeout), Some(unwound)) = (self.reform_timeout, unwound) else {
            self.monitor.exit(FailureKind::PeerLost, &failure.message)
        };
        self.monitor.set_forming();
        let _ = self.failure.set(failure.clone());
        self.interrupt.trigger();
        self.report_loss(&failure);
        self.exit_unless_unwound(unwound, timeout, failure);
    }

    fn report_loss(&self, failure: &GroupFailure) {
        let (Some(stage), Some(incarnations)) = (failure.root_cause_rank, self.incarnations.get()) else { return };
        self.monitor.emit(&TrainingEvent::StageLost {
            stage: stage as u32,
            incarnation: incarnations.get(stage).copied().flatten().unwrap_or(0),
            has_ended: failure.has_ended,
            message: failure.message.clone(),
        });
    }

    /// Starts a watchdog thread. If the main thread hangs, so that this stage does not return to the rendezvous within
    /// `timeout`, the watchdog ends the process with the failure of the group.
    fn exit_unless_unwound(&self, unwound: Receiver<()>, timeout: Duration, failure: GroupFailure) {
        let monitor = self.monitor.clone();
        let watch = move || {
            if unwound.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
                monitor.exit(FailureKind::PeerLost, &failure.message);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("reform-watch".into()).spawn(watch) {
            tracing::warn!("no thread to watch the way back to the rendezvous: {error}");
        }
    }
}
