//! Signal handling of a stage.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `stop` on every SIGTERM. SIGINT is ignored: Ctrl-C at a terminal reaches the launcher, which terminates the
/// stages.
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
