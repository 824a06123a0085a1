//! The messages of a control connection. Each side starts with a preamble (magic and version), so that foreign clients
//! are detected, and a handshake; all messages are encrypted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::activity::Heartbeat;
use crate::wire::frame::encode_frame;
use crate::{GroupError, GroupFailure, Hello, Refusal, Roster, StepVote, Verdict};

/// The first bytes of each side.
pub(crate) const MAGIC: [u8; 8] = *b"stgcoach";
/// Version of the control protocol: incremented with every change of its messages.
pub const PROTOCOL_VERSION: u32 = 10;
/// Instead of an exit code when a member leaves: it joins the next group.
pub(crate) const JOINS_NEXT_GROUP: i32 = -1;
/// The same: all members leave, and no group follows this one.
pub(crate) const ENDS_GROUP: i32 = -2;
/// Limit of a hello.
pub(crate) const MAX_HELLO_BYTES: usize = 256 << 10;
/// Limit of any later frame.
pub(crate) const MAX_FRAME_BYTES: usize = 64 << 20;

/// Messages from a member to the coordinator. The order of variants and fields is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum MemberMessage {
    Hello(Hello),
    Heartbeat(Heartbeat),
    /// Weights are loaded, links are open.
    Formed,
    /// To all members; from the leader only.
    Broadcast {
        topic: u32,
        bytes: Vec<u8>,
    },
    Gather {
        topic: u32,
        bytes: Vec<u8>,
    },
    Vote(StepVote),
    Leave {
        code: i32,
    },
    /// Instead of a hello: a spare waits to take the place of a stage.
    StandBy(Hello),
}

/// Messages from the coordinator to a member. The order of variants and fields is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum CoordinatorMessage {
    /// The hello was accepted; this is what the leader is doing until it releases the group.
    Preparing(String),
    Heartbeat,
    Refused(Refusal),
    Released {
        roster: Roster,
        plan: Vec<u8>,
    },
    Formed,
    Broadcast {
        topic: u32,
        bytes: Vec<u8>,
    },
    Gathered {
        topic: u32,
        /// By group rank.
        parts: Vec<Vec<u8>>,
    },
    Verdict(Verdict),
    /// All members have left.
    LeaveAcknowledged,
    GroupEnded(GroupFailure),
    /// To the first spare: if the leader's process ends, it takes its place with the incarnation after this one.
    NextInLine {
        incarnation: u32,
    },
    /// To a spare, as the last message: it takes the place of a stage whose process has ended.
    TakePlace {
        /// A global rank.
        rank: usize,
        incarnation: u32,
    },
    /// To a stage that is not in the group, which has formed without it.
    Waiting {
        progress: String,
        /// Whether it leads the next group if the leader's process ends.
        succeeds_leader: bool,
    },
}

/// Magic and version.
pub(crate) fn preamble() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}

/// Encodes a message, to be written to any number of members.
///
/// # Errors
/// [`GroupError::FrameTooLarge`].
pub(crate) fn encode_message<T: Serialize>(message: &T) -> Result<Arc<[u8]>, GroupError> {
    encode_frame(message, MAX_FRAME_BYTES).map(Arc::from)
}
