//! The beginning and the end of a connection: one attempt to connect to another stage, the socket options, and the
//! reason why a control connection ended. The caller repeats failed attempts, because the address may belong to a stage
//! that has ended, or a route or a network rule may not exist yet.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::GroupFailure;
use crate::wire::frame;

/// The time limit of one attempt to connect, for each address of the name.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The wait before the next attempt. The wait is short because training can't start until all members of the group are
/// connected.
pub const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Connects to `address` (`host:port`).
///
/// # Errors
/// Returns an error if the name has no address, or none of its addresses answers in time.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Disables Nagle's algorithm, and sets the timeout. A peer that sends nothing or reads nothing for this time is
/// considered lost.
pub(crate) fn configure(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// The reason why a control connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// The kernel of the peer's machine closed the connection: the process has ended.
    Closed,
    /// The connection failed in another way, which the text describes.
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

    /// Returns the failure of a group that ended because its connection to the stage `name` of rank `rank` ended.
    /// `activity` is the stage's activity at that time, for example `while in F 5`, or empty.
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
