//! The messages of a control connection. Each side starts with a preamble (magic and version), so that foreign clients
//! are detected.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::activity::Heartbeat;
use crate::frame::encode_frame;
use crate::{GroupError, GroupFailure, Hello, Refusal, Roster, StepVote, Verdict};

/// The first bytes of each side.
pub(crate) const MAGIC: [u8; 8] = *b"stgcoach";
/// Incremented with every change of the messages below.
pub(crate) const PROTOCOL_VERSION: u32 = 2;
/// Limit of a hello, whose sender has not been identified yet.
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
    /// To all members; from rank 0 only.
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
}

/// Messages from the coordinator to a member. The order of variants and fields is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum CoordinatorMessage {
    /// The hello was accepted; this is what stage 0 is doing until it releases the group.
    Preparing(String),
    Heartbeat,
    /// This coordinator belongs to an older attempt and exits; a newer one will listen here.
    RetryLater,
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
        parts: Vec<Vec<u8>>,
    },
    Verdict(Verdict),
    /// All members have left.
    LeaveAcknowledged,
    GroupEnded(GroupFailure),
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

/// Writes an encoded message. On an error the connection is shut down: part of the message may have been sent.
pub(crate) fn write_message(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).inspect_err(|_| {
        let _ = stream.shutdown(Shutdown::Both);
    })
}
