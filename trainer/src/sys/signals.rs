//! Signals that a stage cares about.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `stop` at every SIGTERM. SIGINT is swallowed: at a terminal it goes to the whole foreground group, and it is
/// the launcher that asks its stages to stop.
///
/// # Errors
/// If the handlers can't be installed.
pub(crate) fn on_terminate(stop: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGTERM {
                stop();
            }
        }
    })?;
    Ok(())
}
