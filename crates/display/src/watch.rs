//! A text that is renewed where it stands.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

/// The interval between two renewals.
const INTERVAL: Duration = Duration::from_secs(2);

/// Prints what `text` gives every two seconds, on a terminal instead of the one before, until nobody reads it any more.
///
/// # Errors
/// The first error of `text`.
pub fn watch<E>(mut text: impl FnMut() -> Result<String, E>) -> Result<(), E> {
    let mut out = io::stdout();
    // to the top left, and erase the rest of the screen
    let clear = if out.is_terminal() { "\x1b[H\x1b[J" } else { "" };
    loop {
        let text = text()?;
        if writeln!(out, "{clear}{text}").is_err() {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
}
