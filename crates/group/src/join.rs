//! Joining: retries until the start-up timeout, which every progress report of stage 0 extends.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use crate::connect::{RETRY_DELAY, connect};
use crate::control_stream::{ControlStream, send_heartbeats};
use crate::disconnect::Disconnect;
use crate::messages::{CoordinatorMessage, MemberMessage, PROTOCOL_VERSION, encode_message};
use crate::{
    Activity, GroupError, GroupSecret, GroupTimeouts, Hello, NotFound, Refusal, Rendezvous, Roster, connection,
    coordinator, handshake,
};

/// A member whose group has been released.
pub(crate) struct Joined {
    pub(crate) stream: Arc<ControlStream>,
    pub(crate) roster: Roster,
    pub(crate) plan: Vec<u8>,
    pub(crate) secret: GroupSecret,
    /// The heartbeats stop when this is dropped.
    pub(crate) stop_heartbeat: Sender<()>,
}

/// Why one attempt to join failed.
pub(crate) enum JoinError {
    /// Another attempt may succeed.
    Retry(String),
    /// The leader's process has ended: the same, with another one.
    Ended(String),
    Fatal(GroupError),
}

impl JoinError {
    fn at(self, address: &str) -> JoinError {
        match self {
            JoinError::Retry(reason) => JoinError::Retry(format!("at {address}: {reason}")),
            JoinError::Ended(reason) => JoinError::Ended(format!("at {address}: {reason}")),
            fatal @ JoinError::Fatal(_) => fatal,
        }
    }
}

/// How long this stage has waited without progress of stage 0.
struct JoinProgress {
    last_progress_at: Instant,
    last_report: Option<String>,
}

pub(crate) fn join(
    mut find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: &Hello,
    timeouts: GroupTimeouts,
    activity: &Activity,
    mut on_preparing: impl FnMut(&str),
) -> Result<Joined, GroupError> {
    let rank = hello.rank;
    let frame = encode_message(&MemberMessage::Hello(hello.clone()))?;
    let mut progress = JoinProgress { last_progress_at: Instant::now(), last_report: None };
    loop {
        let tried = match find() {
            Ok(Rendezvous { protocol_version: found, .. }) if found != PROTOCOL_VERSION => {
                return Err(GroupError::OtherVersion { rank, found });
            }
            Ok(at) => {
                try_join(&at, rank, &frame, timeouts, activity, &mut progress, &mut on_preparing).map_err(|error| {
                    match error.at(&at.address) {
                        JoinError::Ended(reason) if at.succeeds_leader => {
                            JoinError::Fatal(GroupError::LeaderEnded { rank, group: at.secret.epoch(), reason })
                        }
                        error => error,
                    }
                })
            }
            Err(NotFound::Superseded(newer)) => return Err(GroupError::Superseded { rank, newer }),
            Err(NotFound::Yet(reason)) => Err(JoinError::Retry(reason)),
        };
        let reason = match tried {
            Ok(joined) => return Ok(joined),
            Err(JoinError::Fatal(error)) => return Err(error),
            Err(JoinError::Retry(reason) | JoinError::Ended(reason)) => reason,
        };
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout {
            return Err(GroupError::Unreachable { rank, waited, reason });
        }
        tracing::debug!(reason, "stage 0 is not there yet");
        thread::sleep(RETRY_DELAY.min(timeouts.startup_timeout - waited));
    }
}

/// One connection attempt: handshake, then wait for the release of the group.
fn try_join(
    at: &Rendezvous,
    rank: usize,
    hello: &[u8],
    timeouts: GroupTimeouts,
    activity: &Activity,
    progress: &mut JoinProgress,
    on_preparing: &mut impl FnMut(&str),
) -> Result<Joined, JoinError> {
    let (stream, stop_heartbeat) = connect_to_group(at, hello, timeouts, activity)?;
    loop {
        match stream.receive() {
            Ok(CoordinatorMessage::Preparing(report)) => {
                on_preparing(&report);
                *progress = JoinProgress { last_progress_at: Instant::now(), last_report: Some(report) };
            }
            Ok(CoordinatorMessage::Released { roster, plan }) => {
                return Ok(Joined { stream, roster, plan, secret: at.secret.clone(), stop_heartbeat });
            }
            // another group is about to begin, or will be soon
            Ok(CoordinatorMessage::Refused(refusal @ (Refusal::AlreadyFormed { .. } | Refusal::GroupEnded { .. }))) => {
                return Err(JoinError::Retry(refusal.to_string()));
            }
            Ok(CoordinatorMessage::Refused(refusal)) => {
                return Err(JoinError::Fatal(GroupError::Refused { rank, refusal }));
            }
            Ok(CoordinatorMessage::GroupEnded(failure)) => {
                return Err(JoinError::Fatal(GroupError::GroupFailed(Box::new(failure))));
            }
            Ok(CoordinatorMessage::LeaveAcknowledged) => return Err(JoinError::Fatal(GroupError::AllLeft { rank })),
            Ok(_) => {}
            Err(error) if Disconnect::of(&error) == Disconnect::Closed => {
                return Err(JoinError::Ended(error.to_string()));
            }
            Err(error) => return Err(JoinError::Retry(error.to_string())),
        }
        // The coordinator enforces this timeout with a better message; this is the fallback.
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout + timeouts.heartbeat_timeout {
            let progress = progress.last_report.clone().unwrap_or_else(|| "nothing".to_owned());
            return Err(JoinError::Fatal(GroupError::StartupTimedOut { rank, waited, progress }));
        }
    }
}

/// Connects, says `hello`, and sends heartbeats until the sender is dropped.
pub(crate) fn connect_to_group(
    at: &Rendezvous,
    hello: &[u8],
    timeouts: GroupTimeouts,
    activity: &Activity,
) -> Result<(Arc<ControlStream>, Sender<()>), JoinError> {
    let retry = |error: io::Error| JoinError::Retry(error.to_string());
    // the leader listens before anybody knows its address
    let stream = connect(&at.address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => JoinError::Ended(error.to_string()),
        _ => retry(error),
    })?;
    connection::configure(&stream, timeouts.heartbeat_timeout).map_err(retry)?;
    let session = handshake::client_handshake(&mut &stream, &at.secret).map_err(retry)?;
    let stream = ControlStream::new(stream, &session).map_err(retry)?;
    stream.write(hello).map_err(|_| JoinError::Retry("it closed the connection".to_owned()))?;
    let stream = Arc::new(stream);
    let (stop_heartbeat, stop) = channel();
    let (heartbeat_stream, activity) = (Arc::clone(&stream), activity.clone());
    let interval = timeouts.heartbeat_interval;
    coordinator::spawn("group-heartbeat", move || send_heartbeats(&heartbeat_stream, &activity, interval, &stop))
        .map_err(JoinError::Fatal)?;
    Ok((stream, stop_heartbeat))
}
