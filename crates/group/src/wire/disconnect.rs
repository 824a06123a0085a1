//! The end of a control connection, as either side sees it.

use std::io;
use std::time::Duration;

use crate::GroupFailure;
use crate::wire::frame;

/// The end of a control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// The kernel of the peer's machine closed the connection: the process has ended.
    Closed,
    /// The connection broke.
    Lost(String),
    /// The peer sent nothing for `heartbeat_timeout`, or read nothing.
    TimedOut,
    /// The peer sent an invalid frame.
    Malformed(String),
}

impl Disconnect {
    /// Classifies an error of reading a frame.
    pub(crate) fn of(error: &io::Error) -> Disconnect {
        match error.kind() {
            _ if frame::is_timeout(error) => Disconnect::TimedOut,
            io::ErrorKind::InvalidData => Disconnect::Malformed(error.to_string()),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Disconnect::Closed,
            _ => Disconnect::Lost(format!("lost its control connection ({error})")),
        }
    }

    /// The failure of the group if the peer is rank `rank`, the stage `name`. `activity` is the stage's activity at
    /// that time, for example `while in F 5`, or empty.
    pub(crate) fn failure(self, rank: usize, name: &str, activity: &str, heartbeat_timeout: Duration) -> GroupFailure {
        let space = if activity.is_empty() { "" } else { " " };
        let has_ended = self == Disconnect::Closed;
        let message = match self {
            Disconnect::Closed => {
                format!("{name} closed its control connection{space}{activity}: its process has died")
            }
            Disconnect::Lost(how) => {
                format!("{name} {how}{space}{activity}: its process has died, or its machine is gone")
            }
            Disconnect::TimedOut => format!(
                "{name} has sent no heartbeat for {}{space}{activity}: its process is stopped or hung, or the \
                 network is down",
                format_seconds(heartbeat_timeout)
            ),
            Disconnect::Malformed(what) => format!("{name} sent {what}"),
        };
        GroupFailure { root_cause_rank: Some(rank), rank: 0, message, has_ended }
    }
}

/// Formats a duration in seconds with the unit: `0.4 s`, `41 s`.
pub(crate) fn format_seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}
