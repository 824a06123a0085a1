//! A spare's side of the protocol. A spare connects to one group after another, until it replaces a stage.

use std::io;
use std::thread;

use crate::member::control_stream::ControlStream;
use crate::member::join::{JoinError, connect_to_group};
use crate::wire::connection::{Disconnect, RETRY_DELAY};
use crate::wire::messages::{CoordinatorMessage, MemberMessage, PROTOCOL_VERSION, encode_message};
use crate::{Activity, GroupError, GroupTimeouts, Hello, NotFound, Refusal, Rendezvous};

/// The result of waiting as a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareOutcome {
    /// The spare replaces a stage whose process has ended, and joins the next group as that stage.
    Promoted {
        /// The stage's global rank.
        rank: usize,
        /// The spare's incarnation as this stage. Each process of a stage has a higher incarnation than its
        /// predecessors.
        incarnation: u32,
    },
    /// All stages have left, so the job does not need the spare.
    Dismissed,
}

/// Waits, without a time limit, until this spare replaces a stage or all stages have left. `hello.rank` is the spare's
/// number among the spares. `find` returns the group to connect to. `on_released` receives the plan of each group that
/// has formed.
///
/// # Errors
/// Returns an error if the group refuses this spare, or if a newer attempt or job has begun.
pub fn wait_as_spare(
    mut find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: &Hello,
    timeouts: GroupTimeouts,
    mut on_released: impl FnMut(&[u8]),
) -> Result<SpareOutcome, GroupError> {
    let name = || format!("spare {}", hello.rank);
    let frame = encode_message(&MemberMessage::WaitAsSpare(hello.clone()))?;
    loop {
        let waited = match find() {
            Ok(Rendezvous { protocol_version: found, .. }) if found != PROTOCOL_VERSION => {
                return Err(GroupError::OtherVersion { name: name(), found });
            }
            Ok(at) => {
                connect_to_group(&at, &frame, timeouts, &Activity::new("")).and_then(|(stream, _stop_heartbeat)| {
                    let waited = wait_in_group(&stream, &name(), &mut on_released);
                    stream.shut_down(); // the coordinator waits for the spare to disconnect
                    waited
                })
            }
            Err(NotFound::Superseded(newer)) => return Err(GroupError::Superseded { name: name(), newer }),
            Err(NotFound::NotReady(reason)) => Err(JoinError::Retry(reason)),
            // the spare retries if the group has no leader, because only a stage can become the next leader
            Err(NotFound::Leaderless(group)) => Err(JoinError::Retry(format!("group {group} has no leader"))),
        };
        match waited {
            Ok(end) => return Ok(end),
            Err(error) => {
                let reason = error.reason_to_retry()?;
                tracing::debug!(reason, "waiting for the next group");
            }
        }
        thread::sleep(RETRY_DELAY);
    }
}

/// Waits until the group ends, and returns the result for the spare.
fn wait_in_group(
    stream: &ControlStream,
    name: &str,
    on_released: &mut impl FnMut(&[u8]),
) -> Result<SpareOutcome, JoinError> {
    // the incarnation with which this spare would replace the leader, if the spare is the first in line
    let mut leader_incarnation = None;
    let lost = |error: io::Error| JoinError::Retry(error.to_string());
    loop {
        match stream.receive() {
            Ok(CoordinatorMessage::Released { plan, .. }) => on_released(&plan),
            Ok(CoordinatorMessage::NextInLine { incarnation }) => leader_incarnation = incarnation.checked_add(1),
            Ok(CoordinatorMessage::Promote { rank, incarnation }) => {
                return Ok(SpareOutcome::Promoted { rank, incarnation });
            }
            Ok(CoordinatorMessage::LeaveAcknowledged) => return Ok(SpareOutcome::Dismissed),
            Ok(CoordinatorMessage::GroupEnded(failure)) => return Err(JoinError::Retry(failure.message)),
            Ok(CoordinatorMessage::Refused(refusal @ Refusal::GroupEnded { .. })) => {
                return Err(JoinError::Retry(refusal.describe(name)));
            }
            Ok(CoordinatorMessage::Refused(refusal)) => {
                return Err(JoinError::Fatal(GroupError::Refused { name: name.to_owned(), refusal }));
            }
            Ok(_) => {}
            Err(error) => match (Disconnect::of(&error), leader_incarnation) {
                // a closed connection without a message means that the leader's process has ended
                (Disconnect::Closed, Some(incarnation)) => return Ok(SpareOutcome::Promoted { rank: 0, incarnation }),
                _ => return Err(lost(error)),
            },
        }
    }
}
