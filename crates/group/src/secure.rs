//! Noise over a stream: both sides prove that they hold the group's key, and everything after that is encrypted.
//!
//! The handshake is `NNpsk0` of the [Noise protocol framework](https://noiseprotocol.org/noise.html): one message each way.
//! A message that was recorded earlier gets an answer, but whoever sends it can't go on: the answer holds a new ephemeral
//! key. So a peer counts as authenticated once its first record has been decrypted.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::frame::invalid;

/// Encryption costs about a nanosecond a byte.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Size of each of the two messages of the handshake: an ephemeral public key and a tag.
pub const HANDSHAKE_BYTES: usize = 48;
/// Size of the group's key.
const KEY_BYTES: usize = 32;
/// Before each record: its size, as u16 in little endian.
const PREFIX_BYTES: usize = 2;
/// Size of the tag at the end of a record.
const TAG_BYTES: usize = 16;
/// The most that one record carries, by Noise's limit of a message.
const MAX_PAYLOAD_BYTES: usize = u16::MAX as usize - TAG_BYTES;

/// What the stages of one group share: who has it may join.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSecret {
    /// The number of the group's fence.
    pub epoch: u64,
    key: [u8; KEY_BYTES],
}

impl fmt::Debug for GroupSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupSecret(epoch {})", self.epoch)
    }
}

impl GroupSecret {
    /// A new key for the group of `epoch`.
    ///
    /// # Errors
    /// If the operating system has no random numbers.
    pub fn generate(epoch: u64) -> io::Result<GroupSecret> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(GroupSecret { epoch, key })
    }

    /// The key as hexadecimal digits.
    pub fn key_hex(&self) -> String {
        self.key.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The secret whose key `key_hex` wrote; `None` for anything else.
    pub fn from_key_hex(epoch: u64, hex: &str) -> Option<GroupSecret> {
        let mut key = [0; KEY_BYTES];
        if hex.len() != 2 * KEY_BYTES || !hex.is_ascii() {
            return None;
        }
        for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
        }
        Some(GroupSecret { epoch, key })
    }

    /// `purpose` and epoch are what both sides must mean: a handshake of another kind of connection, or of another group,
    /// fails.
    fn builder<'a>(&'a self, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
        Builder::new(PROTOCOL.parse()?).psk(0, &self.key)?.prologue(prologue)
    }

    fn prologue(&self, purpose: &str) -> Vec<u8> {
        [purpose.as_bytes(), &self.epoch.to_le_bytes()].concat()
    }
}

/// The initiator's side of a handshake that has begun.
#[derive(Debug)]
pub struct Handshake(HandshakeState);

impl Handshake {
    /// Begins a handshake; the message goes to the responder.
    ///
    /// # Errors
    /// If the operating system has no random numbers.
    pub fn begin(secret: &GroupSecret, purpose: &str) -> io::Result<(Handshake, [u8; HANDSHAKE_BYTES])> {
        let mut state = secret.builder(&secret.prologue(purpose)).and_then(Builder::build_initiator).map_err(failed)?;
        let message = write_message(&mut state)?;
        Ok((Handshake(state), message))
    }

    /// Ends it with the responder's answer.
    ///
    /// # Errors
    /// `InvalidData` if the responder does not hold the key.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> io::Result<Session> {
        read_message(&mut self.0, answer)?;
        Session::new(self.0)
    }

    /// The responder's side: its session, and the answer to the initiator's message.
    ///
    /// # Errors
    /// `InvalidData` if the initiator does not hold the key.
    pub fn respond(
        secret: &GroupSecret,
        purpose: &str,
        message: &[u8; HANDSHAKE_BYTES],
    ) -> io::Result<(Session, [u8; HANDSHAKE_BYTES])> {
        let mut state = secret.builder(&secret.prologue(purpose)).and_then(Builder::build_responder).map_err(failed)?;
        read_message(&mut state, message)?;
        let answer = write_message(&mut state)?;
        Ok((Session::new(state)?, answer))
    }
}

fn write_message(state: &mut HandshakeState) -> io::Result<[u8; HANDSHAKE_BYTES]> {
    let mut message = [0; HANDSHAKE_BYTES];
    state.write_message(&[], &mut message).map_err(failed)?;
    Ok(message)
}

fn read_message(state: &mut HandshakeState, message: &[u8; HANDSHAKE_BYTES]) -> io::Result<()> {
    state.read_message(message, &mut []).map_err(|_| invalid("it does not have this group's key".to_owned()))?;
    Ok(())
}

fn failed(error: snow::Error) -> io::Error {
    io::Error::other(format!("the handshake failed: {error}"))
}

/// The keys of one connection, after its handshake.
#[derive(Clone, Debug)]
pub struct Session(Arc<StatelessTransportState>);

impl Session {
    fn new(state: HandshakeState) -> io::Result<Session> {
        state.into_stateless_transport_mode().map(|state| Session(Arc::new(state))).map_err(failed)
    }

    /// Decrypts what arrives on `stream`.
    pub fn reader<S: Read>(&self, stream: S) -> SecureReader<S> {
        SecureReader {
            stream,
            session: self.clone(),
            nonce: 0,
            record: Vec::new(),
            received: 0,
            payload: Vec::new(),
            taken: 0,
        }
    }

    /// Encrypts what goes out on `stream`.
    pub fn writer<S: Write>(&self, stream: S) -> SecureWriter<S> {
        SecureWriter { stream, session: self.clone(), nonce: 0, record: Vec::new() }
    }
}

/// The receiving half of a connection. It takes no byte from the stream beyond the record that it returns. After an error
/// other than `WouldBlock` and `TimedOut` the connection is of no use.
#[derive(Debug)]
pub struct SecureReader<S> {
    stream: S,
    session: Session,
    /// Records so far.
    nonce: u64,
    /// The record that is arriving, with its prefix.
    record: Vec<u8>,
    received: usize,
    /// The last one, decrypted.
    payload: Vec<u8>,
    /// Bytes of `payload` that have been returned.
    taken: usize,
}

impl<S: Read> SecureReader<S> {
    /// Reads until the record is complete; false at the end of the stream before a record.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            let end = match *self.record {
                [low, high, ..] if self.received >= PREFIX_BYTES => {
                    PREFIX_BYTES + usize::from(u16::from_le_bytes([low, high]))
                }
                _ => PREFIX_BYTES,
            };
            if self.received >= PREFIX_BYTES && self.received == end {
                break;
            }
            self.record.resize(end, 0);
            match self.stream.read(&mut self.record[self.received..]) {
                Ok(0) if self.received == 0 => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.received += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let record = &self.record[PREFIX_BYTES..];
        self.payload.resize(record.len(), 0);
        let bytes = (self.session.0.read_message(self.nonce, record, &mut self.payload))
            .map_err(|_| invalid("a record that is not of this connection".to_owned()))?;
        self.payload.truncate(bytes);
        (self.nonce, self.received, self.taken) = (self.nonce + 1, 0, 0);
        Ok(true)
    }
}

impl<S: Read> Read for SecureReader<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.payload.len() {
            if buffer.is_empty() || !self.receive()? {
                return Ok(0);
            }
        }
        let count = buffer.len().min(self.payload.len() - self.taken);
        buffer[..count].copy_from_slice(&self.payload[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// The sending half of a connection. After an error it is of no use: part of a record may have been sent.
#[derive(Debug)]
pub struct SecureWriter<S> {
    stream: S,
    session: Session,
    /// Records so far.
    nonce: u64,
    record: Vec<u8>,
}

impl<S: Write> Write for SecureWriter<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let payload = &bytes[..bytes.len().min(MAX_PAYLOAD_BYTES)];
        if payload.is_empty() {
            return Ok(0);
        }
        let length = payload.len() + TAG_BYTES;
        self.record.resize(PREFIX_BYTES + length, 0);
        self.record[..PREFIX_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
        (self.session.0.write_message(self.nonce, payload, &mut self.record[PREFIX_BYTES..]))
            .map_err(io::Error::other)?;
        self.nonce += 1;
        self.stream.write_all(&self.record)?;
        Ok(payload.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(epoch: u64) -> GroupSecret {
        GroupSecret { epoch, key: [7; KEY_BYTES] }
    }

    /// The sessions of both sides.
    fn sessions() -> [Session; 2] {
        let (handshake, message) = Handshake::begin(&secret(1), "test").unwrap();
        let (theirs, answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
        [handshake.finish(&answer).unwrap(), theirs]
    }

    fn sent(session: &Session, parts: &[&[u8]]) -> Vec<u8> {
        let mut writer = session.writer(Vec::new());
        parts.iter().for_each(|part| writer.write_all(part).unwrap());
        writer.stream
    }

    #[test]
    fn a_secret_round_trips_as_text_and_is_not_printed() {
        let secret = GroupSecret::generate(7).unwrap();
        let hex = secret.key_hex();
        assert_eq!(GroupSecret::from_key_hex(7, &hex), Some(secret.clone()));
        assert_ne!(GroupSecret::generate(7).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "GroupSecret(epoch 7)");
        for other in ["", "00", &hex[1..], &format!("{}zz", &hex[2..]), &"é".repeat(32)] {
            assert_eq!(GroupSecret::from_key_hex(7, other), None, "{other}");
        }
    }

    #[test]
    fn another_key_epoch_or_purpose_fails_the_handshake() {
        let other_key = GroupSecret { key: [8; KEY_BYTES], ..secret(1) };
        for (theirs, purpose) in [(other_key, "test"), (secret(2), "test"), (secret(1), "another")] {
            let (_, message) = Handshake::begin(&secret(1), "test").unwrap();
            let error = Handshake::respond(&theirs, purpose, &message).unwrap_err();
            assert_eq!(
                (error.kind(), &*error.to_string()),
                (ErrorKind::InvalidData, "it does not have this group's key")
            );
        }
        // and so does an answer by somebody who does not hold it
        let (handshake, _) = Handshake::begin(&secret(1), "test").unwrap();
        assert_eq!(handshake.finish(&[3; HANDSHAKE_BYTES]).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_replayed_handshake_leads_nowhere() {
        let (handshake, message) = Handshake::begin(&secret(1), "test").unwrap();
        let (theirs, answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
        let records = sent(&handshake.finish(&answer).unwrap(), &[b"hello"]);
        let mut read = String::new();
        theirs.reader(&*records).read_to_string(&mut read).unwrap();
        assert_eq!(read, "hello");
        // both messages once more: the answer is another, and the recorded records do not fit it
        let (again, other_answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
        assert_ne!(other_answer, answer);
        assert_eq!(again.reader(&*records).read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_changed_repeated_or_missing_record_ends_the_connection() {
        let [ours, theirs] = sessions();
        let records = sent(&ours, &[b"one", b"two"]);
        let one = PREFIX_BYTES + 3 + TAG_BYTES;
        let read = |bytes: &[u8]| theirs.reader(bytes).read_to_end(&mut Vec::new()).map_err(|e| e.kind());
        assert_eq!(read(&records), Ok(6));
        for at in 0..one {
            let mut changed = records.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "byte {at}");
        }
        assert_eq!(read(&[&records[..one], &records[..one]].concat()), Err(ErrorKind::InvalidData));
        assert_eq!(read(&records[one..]), Err(ErrorKind::InvalidData));
        assert_eq!(read(&records[..one]), Ok(3));
        assert_eq!(read(&records[..one + 1]), Err(ErrorKind::UnexpectedEof));
        // what this side sent is not what it receives
        assert_eq!(ours.reader(&*records).read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn nothing_is_read_beyond_a_record_and_large_ones_are_split() {
        let [ours, theirs] = sessions();
        let large = vec![5; 3 * MAX_PAYLOAD_BYTES + 1];
        let mut bytes = sent(&ours, &[&large]);
        bytes.extend(b"rest");
        let mut stream = &bytes[..];
        let mut read = vec![0; large.len()];
        theirs.reader(&mut stream).read_exact(&mut read).unwrap();
        assert!(read == large && stream == b"rest");
    }

    proptest! {
        /// Bytes that arrive piece by piece, each time after nothing was there.
        #[test]
        fn records_round_trip_through_a_stream_that_would_block(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..99), 0..9)) {
            struct Slow<'a>(&'a [u8], bool);
            impl Read for Slow<'_> {
                fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                    self.1 = !self.1;
                    match self.1 {
                        true => Err(ErrorKind::WouldBlock.into()),
                        false => self.0.read(&mut buffer[..1]),
                    }
                }
            }
            let [ours, theirs] = sessions();
            let bytes = sent(&ours, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut reader = theirs.reader(Slow(&bytes, false));
            let (mut read, mut buffer) = (Vec::new(), [0; 7]);
            loop {
                match reader.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => read.extend_from_slice(&buffer[..count]),
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            prop_assert_eq!(read, parts.concat());
        }

        /// Whatever arrives instead of a handshake or a record: an error, and no more memory than a record takes.
        #[test]
        fn foreign_bytes_are_an_error(message in prop::array::uniform32(any::<u8>()), bytes in prop::collection::vec(any::<u8>(), 3..300)) {
            let mut first = [0; HANDSHAKE_BYTES];
            first[..32].copy_from_slice(&message);
            prop_assert!(Handshake::respond(&secret(1), "test", &first).is_err());
            let [_, theirs] = sessions();
            let mut reader = theirs.reader(&*bytes);
            prop_assert!(reader.read(&mut [0; 8]).is_err());
            prop_assert!(reader.record.capacity() <= 2 * (PREFIX_BYTES + usize::from(u16::MAX)));
        }
    }
}
