//! Joins a group. A stage retries until the start-up timeout, which every progress report of the leader extends.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::member::control_stream::{ControlStream, send_heartbeats};
use crate::sync::spawn;
use crate::wire::connection::{Disconnect, RETRY_DELAY, configure, connect};
use crate::wire::handshake;
use crate::wire::messages::{CoordinatorMessage, MemberMessage, PROTOCOL_VERSION, encode_message};
use crate::{
    Activity, GroupError, GroupSecret, GroupTimeouts, Hello, NotFound, Refusal, Rendezvous, Roster, local_shortage,
};

/// The maximum time that a living leader takes from one group to the next. During this time, a stage that waits outside
/// the group can't distinguish a living leader from a leader whose process has ended.
const MAX_TIME_BETWEEN_GROUPS: Duration = Duration::from_secs(4);

/// The timeout of [`answers`].
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A member whose group has been released.
pub(crate) struct Joined {
    pub(crate) stream: Arc<ControlStream>,
    pub(crate) roster: Roster,
    pub(crate) plan: Vec<u8>,
    pub(crate) secret: GroupSecret,
    /// Dropping the sender stops the heartbeats.
    pub(crate) stop_heartbeat: Sender<()>,
}

/// The reason why one attempt to join failed.
pub(crate) enum JoinError {
    /// Another attempt may succeed.
    Retry(String),
    /// The leader closed the connection, because its process ended or because it dropped this stage. Another attempt
    /// shows which of the two happened.
    Closed(String),
    /// The connection to the leader could not be opened.
    NotConnected(io::Error),
    Fatal(GroupError),
}

impl JoinError {
    /// Converts the error of a failed call. A shortage of resources in this process is fatal. `otherwise` converts any
    /// other error.
    fn from_io(at: &Rendezvous, error: io::Error, otherwise: impl FnOnce(io::Error) -> JoinError) -> JoinError {
        match local_shortage(&error) {
            Some(_) => {
                JoinError::Fatal(GroupError::io(format!("could not connect to the leader at {}", at.address))(error))
            }
            None => otherwise(error),
        }
    }

    /// Returns the reason to try again.
    ///
    /// # Errors
    /// Returns an error if another attempt would fail too.
    pub(crate) fn reason_to_retry(self) -> Result<String, GroupError> {
        match self {
            JoinError::Retry(reason) | JoinError::Closed(reason) => Ok(reason),
            JoinError::NotConnected(error) => Ok(error.to_string()),
            JoinError::Fatal(error) => Err(error),
        }
    }
}

/// The state of joining: the time of the leader's last progress, and the last observations of the leader. An epoch is
/// the number of a group.
struct JoinProgress {
    last_progress_at: Instant,
    last_report: Option<String>,
    /// The epoch of the group that has formed without this stage, and whether this stage is the successor of that
    /// group's leader.
    waits_beside: Option<(u64, bool)>,
    /// The epoch of the last group that accepted this stage's hello.
    joining: Option<u64>,
    /// The epoch of the last group whose leader closed the connection.
    closed_by: Option<u64>,
    /// The epoch of the last group whose leader reported that the group is over.
    ended: Option<u64>,
    /// The epoch of the last group whose leader was unreachable, and the time of the first failure to connect to this
    /// leader.
    unreachable: Option<(u64, Instant)>,
}

impl Default for JoinProgress {
    fn default() -> Self {
        JoinProgress {
            last_progress_at: Instant::now(),
            last_report: None,
            waits_beside: None,
            joining: None,
            closed_by: None,
            ended: None,
            unreachable: None,
        }
    }
}

impl JoinProgress {
    fn report(&mut self, report: String) {
        (self.last_progress_at, self.last_report) = (Instant::now(), Some(report));
    }

    /// Returns the reason to try again after a failed attempt.
    ///
    /// # Errors
    /// Returns an error if another attempt would fail too, or if the leader's process has ended and this stage succeeds
    /// the leader.
    fn reason_to_retry(&mut self, at: &Rendezvous, name: &str, error: JoinError) -> Result<String, GroupError> {
        let group = at.secret.epoch();
        let (is_member, succeeds_leader) = match self.waits_beside {
            Some((beside, succeeds_leader)) if beside == group => (false, succeeds_leader),
            _ => (true, at.succeeds_leader),
        };
        match &error {
            JoinError::NotConnected(error) if succeeds_leader && self.has_ended(group, is_member, error) => {
                let (name, reason) = (name.to_owned(), error.to_string());
                return Err(GroupError::LeaderEnded { name, group, is_member, reason });
            }
            JoinError::Closed(_) => self.closed_by = Some(group),
            _ => {}
        }
        error.reason_to_retry().map(|reason| format!("at {}: {reason}", at.address))
    }

    /// Whether the process of an unreachable leader has ended. A leader begins to listen before it publishes its
    /// address, and listens until its group is over. A closed or refused connection therefore indicates that the
    /// leader's process has ended, but a network failure does not. A stage that the group accepted concludes this at
    /// once, unless the leader has reported the end of the group. Any other stage first waits for
    /// [`MAX_TIME_BETWEEN_GROUPS`], because a living leader may be between two groups.
    fn has_ended(&mut self, group: u64, is_member: bool, error: &io::Error) -> bool {
        if self.unreachable.is_none_or(|(unreachable, _)| unreachable != group) {
            self.unreachable = Some((group, Instant::now()));
        }
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        if ![self.closed_by, self.ended].contains(&Some(group)) && !is_refused {
            return false;
        }
        let waited = self.unreachable.is_some_and(|(_, since)| since.elapsed() >= MAX_TIME_BETWEEN_GROUPS);
        waited || is_member && self.joining == Some(group) && self.ended != Some(group)
    }
}

pub(crate) fn join(
    mut find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: &Hello,
    name: &str,
    timeouts: GroupTimeouts,
    activity: &Activity,
    mut on_preparing: impl FnMut(&str),
) -> Result<Joined, GroupError> {
    let frame = encode_message(&MemberMessage::Hello(hello.clone()))?;
    let mut progress = JoinProgress::default();
    loop {
        let reason = match find() {
            Ok(Rendezvous { protocol_version: found, .. }) if found != PROTOCOL_VERSION => {
                return Err(GroupError::OtherVersion { name: name.to_owned(), found });
            }
            Ok(at) => match try_join(&at, name, &frame, timeouts, activity, &mut progress, &mut on_preparing) {
                Ok(joined) => return Ok(joined),
                Err(error) => progress.reason_to_retry(&at, name, error)?,
            },
            Err(NotFound::Superseded(newer)) => {
                return Err(GroupError::Superseded { name: name.to_owned(), newer });
            }
            Err(NotFound::Leaderless(group)) => {
                let reason = "it has not published its address".to_owned();
                return Err(GroupError::LeaderEnded { name: name.to_owned(), group, is_member: true, reason });
            }
            Err(NotFound::NotReady(reason)) => reason,
        };
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout {
            return Err(GroupError::Unreachable { name: name.to_owned(), waited, reason });
        }
        tracing::debug!(reason, "the leader is not there yet");
        thread::sleep(RETRY_DELAY.min(timeouts.startup_timeout - waited));
    }
}

/// Makes one attempt: connects, performs the handshake, and waits for the release of the group.
fn try_join(
    at: &Rendezvous,
    name: &str,
    hello: &[u8],
    timeouts: GroupTimeouts,
    activity: &Activity,
    progress: &mut JoinProgress,
    on_preparing: &mut impl FnMut(&str),
) -> Result<Joined, JoinError> {
    let (stream, stop_heartbeat) = connect_to_group(at, hello, timeouts, activity)?;
    progress.unreachable = None;
    loop {
        match stream.receive() {
            Ok(CoordinatorMessage::Preparing(report)) => {
                on_preparing(&report);
                progress.report(report);
                progress.joining = Some(at.secret.epoch());
            }
            Ok(CoordinatorMessage::Waiting { progress: report, succeeds_leader }) => {
                on_preparing(&report);
                progress.report(report);
                progress.waits_beside = Some((at.secret.epoch(), succeeds_leader));
            }
            Ok(CoordinatorMessage::Released { roster, plan }) => {
                return Ok(Joined { stream, roster, plan, secret: at.secret.clone(), stop_heartbeat });
            }
            Ok(CoordinatorMessage::Refused(refusal @ Refusal::GroupEnded { .. })) => {
                progress.ended = Some(at.secret.epoch());
                return Err(JoinError::Retry(refusal.describe(name)));
            }
            // this stage can join the next group, which begins soon
            Ok(CoordinatorMessage::Refused(refusal @ Refusal::AlreadyFormed { .. })) => {
                return Err(JoinError::Retry(refusal.describe(name)));
            }
            Ok(CoordinatorMessage::Refused(refusal)) => {
                return Err(JoinError::Fatal(GroupError::Refused { name: name.to_owned(), refusal }));
            }
            Ok(CoordinatorMessage::GroupEnded(failure)) => {
                return Err(JoinError::Fatal(GroupError::GroupFailed(Box::new(failure))));
            }
            Ok(CoordinatorMessage::LeaveAcknowledged) => {
                return Err(JoinError::Fatal(GroupError::AllLeft { name: name.to_owned() }));
            }
            Ok(_) => {}
            Err(error) if Disconnect::of(&error) == Disconnect::Closed => {
                return Err(JoinError::Closed(error.to_string()));
            }
            Err(error) => return Err(JoinError::Retry(error.to_string())),
        }
        // the coordinator usually enforces the timeout first, with a more specific message
        let waited = progress.last_progress_at.elapsed();
        if waited >= timeouts.startup_timeout + timeouts.heartbeat_timeout {
            let progress = progress.last_report.clone().unwrap_or_else(|| "nothing".to_owned());
            return Err(JoinError::Fatal(GroupError::StartupTimedOut { name: name.to_owned(), waited, progress }));
        }
    }
}

/// Whether a leader answers the handshake, which only a process that has the group's secret can complete. A suspended
/// process does not answer.
pub fn answers(at: &Rendezvous) -> bool {
    let Ok(stream) = connect(&at.address) else { return false };
    configure(&stream, ANSWER_TIMEOUT).is_ok() && handshake::client_handshake(&mut &stream, &at.secret).is_ok()
}

/// Connects to the leader, sends `hello`, and starts a thread that sends heartbeats until the caller drops the returned
/// sender.
pub(crate) fn connect_to_group(
    at: &Rendezvous,
    hello: &[u8],
    timeouts: GroupTimeouts,
    activity: &Activity,
) -> Result<(Arc<ControlStream>, Sender<()>), JoinError> {
    let retry = |error| JoinError::from_io(at, error, |error| JoinError::Retry(error.to_string()));
    let stream = connect(&at.address).map_err(|error| JoinError::from_io(at, error, JoinError::NotConnected))?;
    configure(&stream, timeouts.heartbeat_timeout).map_err(retry)?;
    let session = handshake::client_handshake(&mut &stream, &at.secret).map_err(retry)?;
    let stream = ControlStream::new(stream, &session).map_err(retry)?;
    stream.write(hello).map_err(|_| JoinError::Retry("the peer closed the connection".to_owned()))?;
    let stream = Arc::new(stream);
    let (stop_heartbeat, stop) = channel();
    let (heartbeat_stream, activity) = (Arc::clone(&stream), activity.clone());
    let interval = timeouts.heartbeat_interval;
    spawn("group-heartbeat", move || send_heartbeats(&heartbeat_stream, &activity, interval, &stop))
        .map_err(JoinError::Fatal)?;
    Ok((stream, stop_heartbeat))
}
