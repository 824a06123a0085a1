//! The beginning of a control connection, on both sides: the preamble, the Noise handshake, and the member's hello.

use std::io::{self, Read, Write};

use crate::wire::frame::{invalid, read_frame};
use crate::wire::messages::{MAGIC, MAX_HELLO_BYTES, MemberMessage, PROTOCOL_VERSION, preamble};
use crate::{GroupSecret, HANDSHAKE_BYTES, Handshake, Hello, Session};

/// The prologue that distinguishes the handshakes of control connections from the handshakes of links.
const PURPOSE: &str = "stagecoach control";

/// The kind of a peer that has connected, with its hello.
#[derive(Debug, Clone)]
pub(crate) enum FirstMessage {
    Stage(Hello),
    Spare(Hello),
}

/// The text that the coordinator sends to a client of another protocol.
const FOREIGN_CLIENT_NOTICE: &str = "This is the control port of a Stagecoach job, for its own stages only; the \
                                     status is served over HTTP on another port.\n";

/// Performs the coordinator's side of the handshake. A client that speaks another protocol gets a notice in plain text.
pub(crate) fn server_handshake(stream: &mut (impl Read + Write), secret: &GroupSecret) -> io::Result<Session> {
    let mut first = [0; 12];
    let read = stream.read_exact(&mut first);
    if read.is_err() || first[..8] != MAGIC {
        // a failure is ignored, because the client may have disconnected
        let _ = stream.write_all(FOREIGN_CLIENT_NOTICE.as_bytes());
        return Err(read
            .err()
            .unwrap_or_else(|| invalid(format!("a foreign client, which began with {}", quoted(&first)))));
    }
    // a stage of another version receives the preamble too, so that the stage can report the mismatch
    stream.write_all(&preamble())?;
    if first != preamble() {
        return Err(invalid(format!("a stage that speaks {}", version_of(first))));
    }
    let mut message = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut message)?;
    let (session, answer) = Handshake::respond(secret, PURPOSE, &message)?;
    stream.write_all(&answer)?;
    Ok(session)
}

/// Reads the first message of a member or a spare. Only this message proves that the peer has the key.
pub(crate) fn read_arrival(stream: &mut impl Read) -> io::Result<FirstMessage> {
    match read_frame::<MemberMessage>(stream, MAX_HELLO_BYTES)? {
        MemberMessage::Hello(hello) => Ok(FirstMessage::Stage(hello)),
        MemberMessage::WaitAsSpare(hello) => Ok(FirstMessage::Spare(hello)),
        _ => Err(invalid("a stage that did not begin with a hello".to_owned())),
    }
}

/// Performs the member's side of the handshake.
///
/// # Errors
/// Returns `InvalidData` if the other side is not a coordinator of this version with the group's key.
pub(crate) fn client_handshake(stream: &mut (impl Read + Write), secret: &GroupSecret) -> io::Result<Session> {
    let (handshake, message) = Handshake::begin(secret, PURPOSE)?;
    stream.write_all(&[&preamble()[..], &message].concat())?;
    let mut first = [0; 12];
    stream.read_exact(&mut first)?;
    if first[..8] != MAGIC {
        return Err(invalid(format!("the peer began with {}", quoted(&first))));
    }
    if first != preamble() {
        return Err(invalid(format!(
            "the peer speaks {}, and this stage speaks version {PROTOCOL_VERSION}",
            version_of(first)
        )));
    }
    let mut answer = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut answer)?;
    handshake.finish(&answer)
}

fn version_of(preamble: [u8; 12]) -> String {
    let [.., a, b, c, d] = preamble;
    format!("version {} of the control protocol", u32::from_le_bytes([a, b, c, d]))
}

fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::encode_message;

    #[test]
    fn a_hello_that_is_too_large_is_not_read() {
        let length = u32::try_from(MAX_HELLO_BYTES + 1).unwrap().to_le_bytes();
        let error = read_arrival(&mut &[&length[..], &[0; 16]].concat()[..]).unwrap_err();
        assert!(error.to_string().contains("of 262145 bytes, at most 262144"), "{error}");
    }

    #[test]
    fn a_first_frame_that_is_no_hello_is_refused() {
        let frame = encode_message(&MemberMessage::Formed).unwrap();
        let error = read_arrival(&mut &frame[..]).unwrap_err();
        assert!(error.to_string().contains("did not begin with a hello"), "{error}");
    }
}
