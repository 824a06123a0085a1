//! Frames on a control connection: a length (u32, little endian) and that many bytes of postcard. Each side begins with
//! a preamble, so that a stranger is recognised by its first bytes.

use std::io::{self, Read};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::activity::Snapshot;
use crate::{Failure, GroupError, Hello, Refusal, Roster, StepVote, Verdict};

/// The first bytes of each side.
pub(crate) const MAGIC: [u8; 8] = *b"stgcoach";
/// Raised with every change of the frames below.
pub(crate) const VERSION: u32 = 1;
/// The bound on a hello: whoever sends it is not known yet.
pub(crate) const MAX_HELLO: usize = 256 << 10;
/// The bound on any later frame, in bytes.
pub(crate) const MAX_FRAME: usize = 64 << 20;

/// What a member says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Up {
    Hello(Hello),
    Heartbeat(Snapshot),
    /// Weights are loaded, links are open.
    Formed,
    /// For all members; from rank 0 only.
    Tell {
        topic: u32,
        bytes: Vec<u8>,
    },
    Gather {
        topic: u32,
        bytes: Vec<u8>,
    },
    Vote(StepVote),
    Goodbye {
        code: i32,
    },
}

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Down {
    /// Welcome, and wait: this is what stage 0 is doing.
    Preparing(String),
    /// The coordinator lives.
    Pulse,
    /// This coordinator's attempt is over and a newer one's will soon be found here.
    ComeBack,
    Refused(Refusal),
    Released {
        roster: Roster,
        plan: Vec<u8>,
    },
    Formed,
    Told {
        topic: u32,
        bytes: Vec<u8>,
    },
    Gathered {
        topic: u32,
        parts: Vec<Vec<u8>>,
    },
    Verdict(Verdict),
    /// All have said goodbye.
    Acknowledged,
    Ended(Failure),
}

/// Magic and version.
pub(crate) fn preamble() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// A frame with its length in front, ready to be written to any number of members.
pub(crate) fn encode<T: Serialize>(frame: &T) -> Result<Arc<[u8]>, GroupError> {
    // Four bytes for the length go first and are filled in at the end: one buffer, one write, one packet.
    let mut bytes = postcard::to_extend(frame, vec![0; 4])
        .map_err(|error| GroupError::io("a control message can't be encoded")(io::Error::other(error)))?;
    let length = bytes.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
    let Some(prefix) = prefix else {
        return Err(GroupError::TooLarge { bytes: length, most: MAX_FRAME });
    };
    bytes[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(bytes.into())
}

/// Reads one frame of at most `most` bytes. Malformed ones are `InvalidData`.
pub(crate) fn read<T: DeserializeOwned>(stream: &mut impl Read, most: usize) -> io::Result<T> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let length = u32::from_le_bytes(prefix) as usize;
    if length > most {
        return Err(invalid(format!("a control message of {length} bytes, at most {most} are allowed")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| invalid(format!("a control message that can't be decoded ({error})")))
}

pub(crate) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Whether a read ended because the peer stayed silent for the socket's timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back() {
        let frame = Down::Told { topic: 7, bytes: vec![1, 2, 3] };
        let bytes = encode(&frame).unwrap();
        assert_eq!(read::<Down>(&mut &bytes[..], MAX_FRAME).unwrap(), frame);
    }

    #[test]
    fn frames_are_bounded_on_both_sides() {
        let large = Up::Gather { topic: 0, bytes: vec![0; MAX_FRAME] };
        assert!(matches!(encode(&large), Err(GroupError::TooLarge { .. })));
        // A length alone must not make the reader allocate.
        let error = read::<Up>(&mut &u32::MAX.to_le_bytes()[..], MAX_HELLO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("at most 262144"), "{error}");
    }

    #[test]
    fn what_can_not_be_decoded_is_invalid() {
        let error = read::<Up>(&mut &[1, 0, 0, 0, 99][..], MAX_HELLO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
