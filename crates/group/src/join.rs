//! How a member joins: it tries until the start-up deadline, and every sign of progress on stage 0 extends it.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::line::{Line, beat};
use crate::wire::{self, Down, Up};
use crate::{Activity, GroupError, Hello, Roster, Timing, connection, coordinator, handshake};

/// The pauses between two tries start here, double, and end there.
const PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));

/// A member whose group has been released.
pub(crate) struct Joined {
    pub(crate) line: Arc<Line>,
    pub(crate) roster: Roster,
    pub(crate) plan: Vec<u8>,
    /// The heartbeats stop when this is dropped.
    pub(crate) beating: Sender<()>,
}

/// What became of one try.
enum Missed {
    /// Worth another one.
    Again(String),
    Final(GroupError),
}

/// How long this stage has waited without a sign of progress.
struct Waiting {
    since: Instant,
    progress: Option<String>,
}

pub(crate) fn join(
    address: &str,
    hello: &Hello,
    timing: Timing,
    activity: &Activity,
    mut on_preparing: impl FnMut(&str),
) -> Result<Joined, GroupError> {
    let frame = wire::encode(&Up::Hello(hello.clone()))?;
    let mut waiting = Waiting { since: Instant::now(), progress: None };
    let mut pause = PAUSE.0;
    loop {
        let before = waiting.since;
        let reason = match knock(address, hello.rank, &frame, timing, activity, &mut waiting, &mut on_preparing) {
            Ok(joined) => return Ok(joined),
            Err(Missed::Final(error)) => return Err(error),
            Err(Missed::Again(reason)) => reason,
        };
        let waited = waiting.since.elapsed();
        if waited >= timing.startup {
            let address = address.to_owned();
            return Err(GroupError::NotReached { rank: hello.rank, address, waited, reason });
        }
        if waiting.since != before {
            // It was there: back at once, while the place is kept.
            pause = PAUSE.0;
        }
        tracing::debug!(address, reason, "stage 0 is not there yet");
        thread::sleep(pause.min(timing.startup - waited));
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// One connection: hello, and whatever comes until the group is released.
fn knock(
    address: &str,
    rank: usize,
    hello: &[u8],
    timing: Timing,
    activity: &Activity,
    waiting: &mut Waiting,
    on_preparing: &mut impl FnMut(&str),
) -> Result<Joined, Missed> {
    let again = |error: std::io::Error| Missed::Again(error.to_string());
    let stream = connect(address, timing.heartbeat_timeout).map_err(again)?;
    connection::configure(&stream, timing.heartbeat_timeout).map_err(again)?;
    handshake::introduce(&mut &stream, hello).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            Missed::Final(GroupError::Foreign { address: address.to_owned(), reason: error.to_string() })
        }
        _ => again(error),
    })?;
    let line = Arc::new(Line::new(stream));
    let (beating, stop) = channel();
    let (beaten, activity) = (Arc::clone(&line), activity.clone());
    coordinator::spawn("group-beat", move || beat(&beaten, &activity, timing.heartbeat, &stop))
        .map_err(Missed::Final)?;
    loop {
        match line.hear() {
            Ok(Down::Preparing(progress)) => {
                on_preparing(&progress);
                *waiting = Waiting { since: Instant::now(), progress: Some(progress) };
            }
            Ok(Down::Released { roster, plan }) => return Ok(Joined { line, roster, plan, beating }),
            Ok(Down::Refused(refusal)) => return Err(Missed::Final(GroupError::Refused { rank, refusal })),
            Ok(Down::Ended(failure)) => return Err(Missed::Final(GroupError::Lost(Box::new(failure)))),
            Ok(Down::ComeBack) => return Err(Missed::Again("an older attempt still listens there".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(again(error)),
        }
        // The coordinator sees to this deadline and can say more about it: this is for when it does not.
        let waited = waiting.since.elapsed();
        if waited >= timing.startup + timing.heartbeat_timeout {
            let progress = waiting.progress.clone().unwrap_or_else(|| "nothing".to_owned());
            return Err(Missed::Final(GroupError::StartupTimedOut { rank, waited, progress }));
        }
    }
}

/// Looks the name up anew each time: it may not lead anywhere yet, or no longer to the same place.
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
