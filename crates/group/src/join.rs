//! Joining: retries until the start-up timeout, which every progress report of stage 0 extends.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::control_stream::{ControlStream, send_heartbeats};
use crate::messages::{CoordinatorMessage, MemberMessage, encode_message};
use crate::{Activity, GroupError, GroupTimeouts, Hello, Roster, connection, coordinator, handshake};

/// Delay between attempts: doubles from the minimum to the maximum.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(25);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// A member whose group has been released.
pub(crate) struct Joined {
    pub(crate) stream: Arc<ControlStream>,
    pub(crate) roster: Roster,
    pub(crate) plan: Vec<u8>,
    /// The heartbeats stop when this is dropped.
    pub(crate) stop_heartbeat: Sender<()>,
}

/// Why one attempt to join failed.
enum JoinError {
    /// Another attempt may succeed.
    Retry(String),
    Fatal(GroupError),
}

/// How long this stage has waited without progress of stage 0.
struct JoinProgress {
    last_progress_at: Instant,
    last_report: Option<String>,
}

pub(crate) fn join(
    address: &str,
    hello: &Hello,
    timeouts: GroupTimeouts,
    activity: &Activity,
    mut on_preparing: impl FnMut(&str),
) -> Result<Joined, GroupError> {
    let frame = encode_message(&MemberMessage::Hello(hello.clone()))?;
    let mut progress = JoinProgress { last_progress_at: Instant::now(), last_report: None };
    let mut delay = RETRY_DELAY_MIN;
    loop {
        let before = progress.last_progress_at;
        let reason = match try_join(address, hello.rank, &frame, timeouts, activity, &mut progress, &mut on_preparing) {
            Ok(joined) => return Ok(joined),
            Err(JoinError::Fatal(error)) => return Err(error),
            Err(JoinError::Retry(reason)) => reason,
        };
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout {
            let address = address.to_owned();
            return Err(GroupError::Unreachable { rank: hello.rank, address, waited, reason });
        }
        if progress.last_progress_at != before {
            // Stage 0 was reachable: reconnect at once, while it keeps this rank's slot.
            delay = RETRY_DELAY_MIN;
        }
        tracing::debug!(address, reason, "stage 0 is not there yet");
        thread::sleep(delay.min(timeouts.startup_timeout - waited));
        delay = (delay * 2).min(RETRY_DELAY_MAX);
    }
}

/// One connection attempt: handshake, then wait for the release of the group.
fn try_join(
    address: &str,
    rank: usize,
    hello: &[u8],
    timeouts: GroupTimeouts,
    activity: &Activity,
    progress: &mut JoinProgress,
    on_preparing: &mut impl FnMut(&str),
) -> Result<Joined, JoinError> {
    let retry = |error: std::io::Error| JoinError::Retry(error.to_string());
    let stream = connect(address, timeouts.heartbeat_timeout).map_err(retry)?;
    connection::configure(&stream, timeouts.heartbeat_timeout).map_err(retry)?;
    handshake::client_handshake(&mut &stream, hello).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            JoinError::Fatal(GroupError::NotACoordinator { address: address.to_owned(), reason: error.to_string() })
        }
        _ => retry(error),
    })?;
    let stream = Arc::new(ControlStream::new(stream));
    let (stop_heartbeat, stop) = channel();
    let (heartbeat_stream, activity) = (Arc::clone(&stream), activity.clone());
    let interval = timeouts.heartbeat_interval;
    coordinator::spawn("group-heartbeat", move || send_heartbeats(&heartbeat_stream, &activity, interval, &stop))
        .map_err(JoinError::Fatal)?;
    loop {
        match stream.receive() {
            Ok(CoordinatorMessage::Preparing(report)) => {
                on_preparing(&report);
                *progress = JoinProgress { last_progress_at: Instant::now(), last_report: Some(report) };
            }
            Ok(CoordinatorMessage::Released { roster, plan }) => {
                return Ok(Joined { stream, roster, plan, stop_heartbeat });
            }
            Ok(CoordinatorMessage::Refused(refusal)) => {
                return Err(JoinError::Fatal(GroupError::Refused { rank, refusal }));
            }
            Ok(CoordinatorMessage::GroupEnded(failure)) => {
                return Err(JoinError::Fatal(GroupError::GroupFailed(Box::new(failure))));
            }
            Ok(CoordinatorMessage::RetryLater) => {
                return Err(JoinError::Retry("an older attempt still listens there".to_owned()));
            }
            Ok(_) => {}
            Err(error) => return Err(retry(error)),
        }
        // The coordinator enforces this timeout with a better message; this is the fallback.
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout + timeouts.heartbeat_timeout {
            let progress = progress.last_report.clone().unwrap_or_else(|| "nothing".to_owned());
            return Err(JoinError::Fatal(GroupError::StartupTimedOut { rank, waited, progress }));
        }
    }
}

/// Resolves the name at every attempt: its DNS record may not exist yet, or have changed.
fn connect(address: &str, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
