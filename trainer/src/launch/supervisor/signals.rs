//! Signals that stop a run.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::super::LaunchError;
use super::SupervisorMessage;

/// Sends SIGINT, SIGTERM and SIGHUP to the run that goes on. A process may have several runs, one after the other: all are
/// served by one thread.
pub(super) fn forward_signals(sender: Sender<SupervisorMessage>) -> Result<(), LaunchError> {
    static RUNNING: Mutex<Option<Sender<SupervisorMessage>>> = Mutex::new(None);
    if RUNNING.lock().unwrap_or_else(PoisonError::into_inner).replace(sender).is_some() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(LaunchError::system("handle signals"))?;
    let forward = move || {
        for signal in signals.forever() {
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            if running.as_ref().is_none_or(|sender| sender.send(SupervisorMessage::StopRequested).is_err()) {
                // no run goes on: the signal has its default effect
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map_err(LaunchError::system("start a thread"))?;
    Ok(())
}
