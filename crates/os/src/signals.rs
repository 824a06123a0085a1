//! Handles the signals of a stage.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::termination_mask::mask_termination;

/// Blocks SIGTERM and SIGINT until [`on_terminate`] handles them, even if this process restarts the program in between.
/// The program must call this function first, while it has only one thread.
pub fn hold_termination() {
    mask_termination(libc::SIG_BLOCK);
}

/// Calls `stop` on every SIGTERM, and at once if a SIGTERM is pending. Ignores SIGINT, because Ctrl-C at a terminal
/// also reaches the launcher, and the launcher terminates the stages.
///
/// # Errors
/// Returns an error if the handlers can't be installed.
pub fn on_terminate(stop: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGTERM {
                stop();
            }
        }
    })?;
    mask_termination(libc::SIG_UNBLOCK);
    Ok(())
}
