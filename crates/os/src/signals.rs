//! Signal handling of a stage.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::termination_mask::mask_termination;

/// Blocks SIGTERM and SIGINT until [`on_terminate`] handles them, even while this process restarts itself. The program
/// must call it first, while it has only one thread.
pub fn hold_termination() {
    mask_termination(libc::SIG_BLOCK);
}

/// Calls `stop` on every SIGTERM, and at once if one is pending. SIGINT is ignored: Ctrl-C at a terminal reaches the
/// launcher, which terminates the stages.
///
/// # Errors
/// If the handlers can't be installed.
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
