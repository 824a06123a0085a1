//! The messages of a control connection. Each side first sends a preamble (magic and version), which detects foreign
//! clients. A handshake follows. All messages after the handshake are encrypted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::activity::Heartbeat;
use crate::wire::frame::encode_frame;
use crate::{GroupError, GroupFailure, Hello, Refusal, Roster, StepVote, Verdict};

/// The first bytes that each side sends.
pub(crate) const MAGIC: [u8; 8] = *b"stgcoach";
/// The version of the control protocol. Every change of the messages increments the version.
pub const PROTOCOL_VERSION: u32 = 12;
/// The leave code of a member that joins the next group.
pub(crate) const JOINS_NEXT_GROUP: i32 = -1;
/// The leave code of a member that ends the group for all members. No spare replaces this member.
pub(crate) const ENDS_GROUP: i32 = -2;
/// The size limit of a hello, in bytes.
pub(crate) const MAX_HELLO_BYTES: usize = 256 << 10;
/// The size limit of any later frame, in bytes.
pub(crate) const MAX_FRAME_BYTES: usize = 64 << 20;

/// Messages from a member to the coordinator. The order of variants and fields is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum MemberMessage {
    Hello(Hello),
    Heartbeat(Heartbeat),
    /// The member has loaded its weights and opened its links.
    Formed,
    /// A broadcast to all members. Only the leader sends it.
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
    /// The hello of a spare, which waits until it can replace a stage.
    WaitAsSpare(Hello),
}

/// Messages from the coordinator to a member. The order of variants and fields is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum CoordinatorMessage {
    /// The coordinator has accepted the hello. The text reports the leader's progress until the leader releases the
    /// group.
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
        /// The members' parts, by group rank.
        parts: Vec<Vec<u8>>,
    },
    Verdict(Verdict),
    /// All members have left.
    LeaveAcknowledged,
    GroupEnded(GroupFailure),
    /// The receiving spare is the first in line. If the leader's process ends, this spare replaces the leader.
    /// `incarnation` is the leader's incarnation. The spare uses the next one.
    NextInLine {
        incarnation: u32,
    },
    /// The last message to a spare, which replaces a stage whose process has ended.
    Promote {
        /// The stage's global rank.
        rank: usize,
        /// The spare's incarnation as this stage.
        incarnation: u32,
    },
    /// The group has formed without this stage, which waits for the next group.
    Waiting {
        progress: String,
        /// Whether the stage leads the next group if the leader's process ends.
        succeeds_leader: bool,
    },
}

/// Returns the preamble: magic and version.
pub(crate) fn preamble() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}

/// Encodes a message once, for any number of members.
///
/// # Errors
/// Returns [`GroupError::FrameTooLarge`] if the message exceeds the size limit of a frame.
pub(crate) fn encode_message<T: Serialize>(message: &T) -> Result<Arc<[u8]>, GroupError> {
    encode_frame(message, MAX_FRAME_BYTES).map(Arc::from)
}
