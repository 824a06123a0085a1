//! The stream after a handshake: a sequence of records, each with a size and an encrypted payload.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use snow::{HandshakeState, StatelessTransportState};

use super::failed;
use crate::wire::frame::invalid;

/// Length of the prefix of each record: the size as a little-endian u16.
pub(super) const PREFIX_BYTES: usize = 2;
/// Size of the tag at the end of a record, in bytes.
pub(super) const TAG_BYTES: usize = 16;
/// Maximum payload of one record in bytes, from Noise's limit for a message.
pub(super) const MAX_PAYLOAD_BYTES: usize = u16::MAX as usize - TAG_BYTES;

/// The keys of one connection.
#[derive(Clone, Debug)]
pub struct Session(Arc<StatelessTransportState>);

impl Session {
    pub(super) fn new(state: HandshakeState) -> io::Result<Session> {
        state.into_stateless_transport_mode().map(|state| Session(Arc::new(state))).map_err(failed)
    }

    /// Returns a reader that decrypts the data from `stream`.
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

    /// Returns a writer that encrypts the data for `stream`.
    pub fn writer<S: Write>(&self, stream: S) -> SecureWriter<S> {
        SecureWriter { stream, session: self.clone(), nonce: 0, record: Vec::new() }
    }
}

/// The receiving half of a connection. The reader never reads beyond the record that it returns. After an error other
/// than `WouldBlock` and `TimedOut`, the connection can't be used any more.
#[derive(Debug)]
pub struct SecureReader<S> {
    stream: S,
    session: Session,
    /// The number of records received so far.
    nonce: u64,
    /// The partially received record, with its prefix.
    pub(super) record: Vec<u8>,
    received: usize,
    /// The payload of the last complete record, decrypted.
    payload: Vec<u8>,
    /// The number of bytes of `payload` that have been returned.
    taken: usize,
}

impl<S: Read> SecureReader<S> {
    /// Reads until the record is complete. Returns false if the stream ends before the first byte of the record.
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

/// The sending half of a connection. After an error the connection can't be used any more, because a part of a record
/// may have been sent.
#[derive(Debug)]
pub struct SecureWriter<S> {
    pub(super) stream: S,
    session: Session,
    /// The number of records sent so far.
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
