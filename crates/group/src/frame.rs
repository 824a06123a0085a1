//! Framing of the control connection: a length (u32, little endian), then that many bytes of postcard. Each side starts
//! with a preamble (magic and version), so that foreign clients are detected.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::activity::Heartbeat;
use crate::{GroupError, GroupFailure, Hello, Refusal, Roster, StepVote, Verdict};

/// The first bytes of each side.
pub(crate) const MAGIC: [u8; 8] = *b"stgcoach";
/// Incremented with every change of the frames below.
pub(crate) const PROTOCOL_VERSION: u32 = 1;
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

/// Encodes a frame with its length prefix, ready to be written to any number of members.
pub(crate) fn encode_frame<T: Serialize>(frame: &T) -> Result<Arc<[u8]>, GroupError> {
    // Four bytes for the length go first and are filled in at the end: one buffer, one write, one packet.
    let mut bytes = postcard::to_extend(frame, vec![0; 4])
        .map_err(|error| GroupError::io("a control message can't be encoded")(io::Error::other(error)))?;
    let length = bytes.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME_BYTES);
    let Some(prefix) = prefix else {
        return Err(GroupError::FrameTooLarge { bytes: length, max_bytes: MAX_FRAME_BYTES });
    };
    bytes[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(bytes.into())
}

/// Reads one frame of at most `max_bytes` bytes.
///
/// # Errors
/// `InvalidData` for one that is larger or can't be decoded.
pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read, max_bytes: usize) -> io::Result<T> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let length = u32::from_le_bytes(prefix) as usize;
    if length > max_bytes {
        return Err(invalid(format!("a control message of {length} bytes, at most {max_bytes} are allowed")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| invalid(format!("a control message that can't be decoded ({error})")))
}

/// Writes an encoded frame. On an error the connection is shut down: part of the frame may have been sent.
pub(crate) fn write_frame(mut stream: &TcpStream, frame: &[u8]) -> io::Result<()> {
    stream.write_all(frame).inspect_err(|_| {
        let _ = stream.shutdown(Shutdown::Both);
    })
}

pub(crate) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Whether a read ended because nothing arrived within the socket's timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_round_trips() {
        let frame = CoordinatorMessage::Broadcast { topic: 7, bytes: vec![1, 2, 3] };
        let bytes = encode_frame(&frame).unwrap();
        assert_eq!(read_frame::<CoordinatorMessage>(&mut &bytes[..], MAX_FRAME_BYTES).unwrap(), frame);
    }

    #[test]
    fn frames_are_bounded_on_both_sides() {
        let large = MemberMessage::Gather { topic: 0, bytes: vec![0; MAX_FRAME_BYTES] };
        assert!(matches!(encode_frame(&large), Err(GroupError::FrameTooLarge { .. })));
        // A length alone must not make the reader allocate.
        let error = read_frame::<MemberMessage>(&mut &u32::MAX.to_le_bytes()[..], MAX_HELLO_BYTES).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("at most 262144"), "{error}");
    }

    #[test]
    fn an_undecodable_frame_is_invalid_data() {
        let error = read_frame::<MemberMessage>(&mut &[1, 0, 0, 0, 99][..], MAX_HELLO_BYTES).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
