//! The Noise protocol over a stream: both sides prove that they hold the group's key, and all later data is encrypted.
//!
//! The handshake is `NNpsk0` of the [Noise protocol framework](https://noiseprotocol.org/noise.html), with one message
//! in each direction. A replayed message gets an answer, but its sender can't continue, because the answer contains a
//! new ephemeral key. A peer is therefore authenticated only once its first record has been decrypted.

mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;

use snow::{Builder, HandshakeState};

pub use stream::{SecureReader, SecureWriter, Session};

use crate::wire::frame::invalid;

/// The name of the handshake pattern and its primitives, in Noise's notation.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Size in bytes of each of the two handshake messages: an ephemeral public key and a tag.
pub const HANDSHAKE_BYTES: usize = 48;
/// Size of the group's key, in bytes.
const KEY_BYTES: usize = 32;

/// The secret that the stages of one group share. A process that has the secret may join.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSecret {
    /// The number of the group. A later group of the job has a higher number.
    epoch: u64,
    key: [u8; KEY_BYTES],
}

impl fmt::Debug for GroupSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupSecret(epoch {})", self.epoch)
    }
}

impl GroupSecret {
    /// Generates a new key for the group of `epoch`.
    ///
    /// # Errors
    /// Returns an error if the operating system can't provide random numbers.
    pub fn generate(epoch: u64) -> io::Result<GroupSecret> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(GroupSecret { epoch, key })
    }

    /// Returns the number of the group. A later group of the job has a higher number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the key as hexadecimal digits.
    pub fn key_hex(&self) -> String {
        self.key.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the secret whose key has the hexadecimal digits `hex`; `None` if `hex` is not such a key.
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

    fn builder<'a>(&'a self, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
        Builder::new(PROTOCOL.parse()?).psk(0, &self.key)?.prologue(prologue)
    }

    /// Returns the prologue on which both sides must agree. The handshake fails if the peer expects another kind of
    /// connection or belongs to another group.
    fn prologue(&self, purpose: &str) -> Vec<u8> {
        [purpose.as_bytes(), &self.epoch.to_le_bytes()].concat()
    }
}

/// The initiator's side of a handshake that has begun.
#[derive(Debug)]
pub struct Handshake(HandshakeState);

impl Handshake {
    /// Begins a handshake. The returned message must be sent to the responder.
    ///
    /// # Errors
    /// Returns an error if the operating system can't provide random numbers.
    pub fn begin(secret: &GroupSecret, purpose: &str) -> io::Result<(Handshake, [u8; HANDSHAKE_BYTES])> {
        let mut state = secret.builder(&secret.prologue(purpose)).and_then(Builder::build_initiator).map_err(failed)?;
        let message = write_message(&mut state)?;
        Ok((Handshake(state), message))
    }

    /// Finishes the handshake with the responder's answer.
    ///
    /// # Errors
    /// Returns `InvalidData` if the responder does not hold the key.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> io::Result<Session> {
        read_message(&mut self.0, answer)?;
        Session::new(self.0)
    }

    /// Answers a handshake as the responder. Returns the session, and the answer to the initiator's message.
    ///
    /// # Errors
    /// Returns `InvalidData` if the initiator does not hold the key.
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
    state.read_message(message, &mut []).map_err(|_| invalid("the peer does not have this group's key".to_owned()))?;
    Ok(())
}

fn failed(error: snow::Error) -> io::Error {
    io::Error::other(format!("the handshake failed: {error}"))
}
