//! The start of a link. A handshake proves to each end that its peer belongs to the group. The sender then identifies
//! the link in one encrypted frame, and the receiver answers with one encrypted byte.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stagecoach_api::job::Encryption;
use stagecoach_group::frame::{FrameReader, encode_frame};
use stagecoach_group::{GroupSecret, HANDSHAKE_BYTES, Handshake, SecureReader, SecureWriter, Session};

use super::LinkId;
use super::stream::LinkStream;

/// The time limit for the handshake and the greeting of an accepted connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// The size limit of a greeting, in bytes.
const MAX_GREETING_BYTES: usize = 4096;

/// The message with which a sender identifies the link of a new connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) link: LinkId,
    /// Shared memory that the sender has created, if any.
    pub(super) ring: Option<AnnouncedRing>,
    /// The identifier of the NCCL communicator for all tensors from the sender to the receiving rank, if the sender can
    /// use NCCL for this link.
    pub(super) communicator: Option<Vec<u8>>,
}

/// A ring (a buffer in shared memory) that the sender announces. The greeting contains neither the ring's name nor its
/// path, because each end derives both.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AnnouncedRing {
    /// A text that distinguishes the ring from all other rings of this link.
    pub(super) nonce: String,
    /// The size of the ring, in bytes.
    pub(super) bytes: usize,
}

impl Greeting {
    /// Greets the receiver on a new connection. Returns the receiver's answer, and the connection's stream for
    /// payloads. Each read waits for at most the socket's timeout.
    pub(super) fn send(&self, socket: &TcpStream, security: LinkSecurity) -> io::Result<(u8, LinkStream)> {
        let (handshake, message) = Handshake::begin(security.secret, security.purpose())?;
        (&mut &*socket).write_all(&message)?;
        let mut answer = [0; HANDSHAKE_BYTES];
        (&mut &*socket).read_exact(&mut answer)?;
        let session = handshake.finish(&answer)?;
        let (mut reader, mut writer) = (session.reader(socket.try_clone()?), session.writer(socket.try_clone()?));
        writer.write_all(&encode_frame(self, MAX_GREETING_BYTES).map_err(io::Error::other)?)?;
        let mut answer = [0];
        reader.read_exact(&mut answer)?;
        Ok((answer[0], security.stream(socket, reader, writer)?))
    }
}

/// The settings on which both ends of a link must agree for the handshake to succeed.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkSecurity<'a> {
    pub(super) secret: &'a GroupSecret,
    pub(super) encryption: Encryption,
}

impl LinkSecurity<'_> {
    /// Returns the purpose of the handshake. A handshake succeeds only if both ends have the same purpose. The purpose
    /// of a link differs from the purpose of a control connection, and depends on the encryption setting.
    fn purpose(self) -> &'static str {
        match self.encryption {
            Encryption::None => "stagecoach link",
            Encryption::Required => "stagecoach encrypted link",
        }
    }

    fn stream(
        self,
        socket: &TcpStream,
        reader: SecureReader<TcpStream>,
        writer: SecureWriter<TcpStream>,
    ) -> io::Result<LinkStream> {
        Ok(match self.encryption {
            Encryption::None => LinkStream::Clear(socket.try_clone()?),
            Encryption::Required => LinkStream::Encrypted(reader, writer),
        })
    }
}

/// An accepted connection whose greeting has not arrived completely.
#[derive(Debug)]
pub(super) struct PendingConnection {
    pub(super) stream: TcpStream,
    state: GreetingState,
    /// The time at which the stage closes the connection if the greeting is still incomplete.
    pub(super) deadline: Instant,
}

#[derive(Debug)]
enum GreetingState {
    /// The first message of the handshake, and the number of its bytes that have arrived.
    Handshake([u8; HANDSHAKE_BYTES], usize),
    Greeting(Session, SecureReader<TcpStream>, FrameReader),
}

impl PendingConnection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<PendingConnection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let state = GreetingState::Handshake([0; HANDSHAKE_BYTES], 0);
        Ok(PendingConnection { stream, state, deadline: Instant::now() + GREETING_TIMEOUT })
    }

    /// Reads the bytes that have arrived, up to the end of the greeting. Returns `None` if the greeting is incomplete.
    ///
    /// # Errors
    /// If the peer has disconnected or does not belong to the group.
    pub(super) fn read_greeting(&mut self, security: LinkSecurity) -> io::Result<Option<Greeting>> {
        let read = loop {
            match &mut self.state {
                GreetingState::Handshake(message, received) if *received < HANDSHAKE_BYTES => {
                    match self.stream.read(&mut message[*received..]) {
                        Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
                        Ok(bytes) => *received += bytes,
                        Err(error) => break Err(error),
                    }
                }
                GreetingState::Handshake(message, _) => {
                    let (session, answer) = Handshake::respond(security.secret, security.purpose(), message)?;
                    // the write does not block, because these are the first bytes that this end sends
                    self.stream.write_all(&answer)?;
                    let reader = session.reader(self.stream.try_clone()?);
                    self.state = GreetingState::Greeting(session, reader, FrameReader::new(MAX_GREETING_BYTES));
                }
                GreetingState::Greeting(_, reader, frame) => break frame.read(reader),
            }
        };
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Answers the greeting. Returns the socket, and the stream on which payloads follow.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub(super) fn answer(self, answer: u8, security: LinkSecurity) -> io::Result<(TcpStream, LinkStream)> {
        let PendingConnection { stream: socket, state, .. } = self;
        let GreetingState::Greeting(session, reader, _) = state else { return Err(ErrorKind::NotConnected.into()) };
        socket.set_nonblocking(false)?;
        let mut writer = session.writer(socket.try_clone()?);
        writer.write_all(&[answer])?;
        let stream = security.stream(&socket, reader, writer)?;
        Ok((socket, stream))
    }
}
