//! A spare's side: it is connected to one group after the other, until it takes the place of a stage.

use std::io;
use std::thread;

use crate::member::control_stream::ControlStream;
use crate::member::join::{JoinError, connect_to_group};
use crate::wire::connect::RETRY_DELAY;
use crate::wire::disconnect::Disconnect;
use crate::wire::messages::{CoordinatorMessage, MemberMessage, PROTOCOL_VERSION, encode_message};
use crate::{Activity, GroupError, GroupTimeouts, Hello, NotFound, Refusal, Rendezvous};

/// Why a spare waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandByEnd {
    /// It takes the place of a stage whose process has ended, and joins the next group as that stage.
    TakePlace {
        /// The stage's global rank.
        rank: usize,
        /// Its incarnation.
        incarnation: u32,
    },
    /// All stages have left: there is nothing to wait for.
    Dismissed,
}

/// Waits as a spare, whose rank in `hello` is its number among the spares: until it takes the place of a stage, however
/// long that takes. `find` names the group to connect to; `on_standing_by` gets the plan of each group that has formed.
///
/// # Errors
/// If it may not wait here, or a newer group than that of its attempt has begun.
pub fn stand_by(
    mut find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: &Hello,
    timeouts: GroupTimeouts,
    mut on_standing_by: impl FnMut(&[u8]),
) -> Result<StandByEnd, GroupError> {
    let name = || format!("spare {}", hello.rank);
    let frame = encode_message(&MemberMessage::StandBy(hello.clone()))?;
    loop {
        let waited = match find() {
            Ok(Rendezvous { protocol_version: found, .. }) if found != PROTOCOL_VERSION => {
                return Err(GroupError::OtherVersion { name: name(), found });
            }
            Ok(at) => {
                connect_to_group(&at, &frame, timeouts, &Activity::new("")).and_then(|(stream, _stop_heartbeat)| {
                    let waited = wait_in_group(&stream, &name(), &mut on_standing_by);
                    stream.shut_down(); // the coordinator waits for that
                    waited
                })
            }
            Err(NotFound::Superseded(newer)) => return Err(GroupError::Superseded { name: name(), newer }),
            Err(NotFound::Yet(reason)) => Err(JoinError::Retry(reason)),
            // of a spare nobody expects that
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

/// Waits until the group ends, and what that means for the spare.
fn wait_in_group(
    stream: &ControlStream,
    name: &str,
    on_standing_by: &mut impl FnMut(&[u8]),
) -> Result<StandByEnd, JoinError> {
    // the incarnation with which this spare takes the leader's place, if it is the first in line
    let mut leader_incarnation = None;
    let lost = |error: io::Error| JoinError::Retry(error.to_string());
    loop {
        match stream.receive() {
            Ok(CoordinatorMessage::Released { plan, .. }) => on_standing_by(&plan),
            Ok(CoordinatorMessage::NextInLine { incarnation }) => leader_incarnation = incarnation.checked_add(1),
            Ok(CoordinatorMessage::TakePlace { rank, incarnation }) => {
                return Ok(StandByEnd::TakePlace { rank, incarnation });
            }
            Ok(CoordinatorMessage::LeaveAcknowledged) => return Ok(StandByEnd::Dismissed),
            Ok(CoordinatorMessage::GroupEnded(failure)) => return Err(JoinError::Retry(failure.message)),
            Ok(CoordinatorMessage::Refused(refusal @ Refusal::GroupEnded { .. })) => {
                return Err(JoinError::Retry(refusal.describe(name)));
            }
            Ok(CoordinatorMessage::Refused(refusal)) => {
                return Err(JoinError::Fatal(GroupError::Refused { name: name.to_owned(), refusal }));
            }
            Ok(_) => {}
            Err(error) => match (Disconnect::of(&error), leader_incarnation) {
                // a group that ends in another way says so first
                (Disconnect::Closed, Some(incarnation)) => return Ok(StandByEnd::TakePlace { rank: 0, incarnation }),
                _ => return Err(lost(error)),
            },
        }
    }
}
