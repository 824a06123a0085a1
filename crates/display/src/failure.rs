//! Describes the failure of a stage, and returns the end of the stage's log.

use stagecoach_api::visible;
use stagecoach_lifecycle::AttemptFailure;

/// The base of the exit code after a signal. The code is 128 plus the number of the signal.
const SIGNAL_BASE: i32 = 128;
/// The largest number of shown log lines.
const LOG_TAIL_LINES: usize = 8;

/// Describes why a stage failed: the reason, the exit code, and the message if the message adds information.
pub fn describe_failure(failure: &AttemptFailure) -> String {
    let mut text = failure.label();
    let message = visible(failure.message.trim_end());
    if let Some(code) = failure.exit_code {
        text += &format!(", exit code {code}");
        text += &signal_name(code).map_or_else(String::new, |signal| format!(" ({signal})"));
        if message == format!("exited with code {code}") {
            return text + ".";
        }
    }
    format!("{text}: {message}")
}

/// Returns the name of the signal that an exit code encodes; `None` for other codes.
fn signal_name(code: i32) -> Option<&'static str> {
    Some(match code - SIGNAL_BASE {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// Returns the last lines of a log, with control characters made [`visible`]. Omits empty lines, and lines that contain
/// a line of the message.
pub fn log_tail(log: &str, message: &str) -> Vec<String> {
    let message = visible(message);
    let is_known = |line: &String| message.lines().any(|known| !known.trim().is_empty() && line.contains(known));
    let is_new = |line: &String| !line.trim().is_empty() && !is_known(line);
    let shown = log.lines().rev().map(|line| visible(line).into_owned());
    let mut lines: Vec<String> = shown.filter(is_new).take(LOG_TAIL_LINES).collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_short_and_does_not_repeat_the_message() {
        let log: String = (0..100).map(|line| format!("line {line}\n")).collect();
        assert_eq!(log_tail(&log, "").len(), LOG_TAIL_LINES);
        assert_eq!(log_tail("\none\n\nstage 1: two\n", "two"), ["one"]);
        assert_eq!(log_tail("one\nstage 1: two\n", "two\n\nthree\n"), ["one"]);
        assert_eq!(log_tail("\u{1b}[2Jred\r\ncolumns\rof\n", ""), ["^[[2Jred", "columns^Mof"]);
    }
}
