//! Prints a text that is refreshed in place.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

/// The refresh interval.
const INTERVAL: Duration = Duration::from_secs(2);

/// Prints the result of `text` every two seconds, until the reader closes the output. On a terminal, each text replaces
/// the previous one.
///
/// # Errors
/// Returns the first error of `text`.
pub fn watch<E>(mut text: impl FnMut() -> Result<String, E>) -> Result<(), E> {
    let mut out = io::stdout();
    // moves the cursor to the top left, and erases the rest of the screen
    let clear = if out.is_terminal() { "\x1b[H\x1b[J" } else { "" };
    loop {
        let text = text()?;
        if writeln!(out, "{clear}{text}").is_err() {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
}
