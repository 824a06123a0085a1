//! The output of the commands. Except for [`write_part`], the functions ignore errors of writes to stdout and stderr:
//! the reader may close the pipe early, as `head` does, and a full volume under stderr must not change the exit code.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use stagecoach_api::visible;

/// Prints text and a line feed to stdout. The text may quote a file, so control characters are escaped by [`visible`].
pub(super) fn print_line(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{}", visible(&text.to_string()));
}

/// Writes a part of a text to stdout and flushes it. Escapes control characters only on a terminal (see [`visible`]).
/// Unlike the other functions, returns write errors, for a command whose output is its result.
///
/// # Errors
/// If stdout can't be written.
pub(super) fn write_part(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.is_terminal() {
        true => stdout.write_all(visible(text).as_bytes())?,
        false => stdout.write_all(text.as_bytes())?,
    }
    stdout.flush()
}

/// Prints an error message to stderr. The message may quote a file, so control characters are escaped by [`visible`].
pub(super) fn print_error(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "stagecoach: {}", visible(&text.to_string()));
}

/// Returns the number of columns of the terminal at stdout, or 80 if stdout is no terminal or the terminal has no size.
pub(super) fn terminal_width() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => 80,
    }
}

/// Prints indented JSON to stdout. Escapes control characters only on a terminal (see [`visible`]).
pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    match std::io::stdout().is_terminal() {
        true => print_line(json),
        false => drop(writeln!(std::io::stdout(), "{json}")),
    }
    Ok(())
}

/// Writes `content` to the file that the user requested, if any, and prints the path.
pub(super) fn write_requested_file(path: Option<&Path>, content: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content()).with_context(|| format!("could not write {}", path.display()))?;
    print_line(format!("wrote {}", path.display()));
    Ok(())
}

/// Returns a progress bar over bytes, which is visible if stderr is a terminal.
pub(super) fn byte_progress_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
