//! Signals that stop a run.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::super::LaunchError;
use crate::supervisor_message::SupervisorMessage;

/// Forwards SIGINT, SIGTERM and SIGHUP to the current run as requests to stop. SIGHUP stays ignored if the process
/// ignored it at the start, as under `nohup`. A process may have several consecutive runs. One thread serves all of
/// them.
pub(super) fn forward_signals(sender: Sender<SupervisorMessage>) -> Result<(), LaunchError> {
    static RUNNING: Mutex<Option<Sender<SupervisorMessage>>> = Mutex::new(None);
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = &mut *running {
        *running = sender;
        return Ok(());
    }
    let hangup = Some(SIGHUP).filter(|_| !ignores_hangup());
    let mut signals =
        Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)).map_err(LaunchError::system("handle signals"))?;
    let forward = move || {
        for signal in signals.forever() {
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            if running.as_ref().is_none_or(|sender| sender.send(SupervisorMessage::StopRequested).is_err()) {
                // without an active run, the signal has its default effect
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map_err(LaunchError::system("start a thread"))?;
    // only now, so that the next run tries again if this call fails before
    *running = Some(sender);
    Ok(())
}

/// Whether this process ignores SIGHUP.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, SIGHUP))
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known_by_its_bit() {
        let status = "Name:\tstagecoach\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert_eq!([SIGHUP, SIGINT, SIGTERM].map(|signal| ignores(status, signal)), [true, false, false]);
        assert!(!ignores("SigIgn:\t0000000000000002\n", SIGHUP) && !ignores("", SIGHUP));
    }
}
