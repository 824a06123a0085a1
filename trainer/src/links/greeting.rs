//! How a link begins: a handshake by which both ends prove that they belong to the group, then one encrypted frame that says
//! which link it is, and an encrypted byte as the answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stagecoach_api::job::Encryption;
use stagecoach_group::frame::{FrameReader, encode_frame};
use stagecoach_group::{GroupSecret, HANDSHAKE_BYTES, Handshake, SecureReader, SecureWriter, Session};

use super::LinkId;
use super::stream::LinkStream;

/// How long a connection may take to send its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// More bytes than any greeting has.
const MAX_GREETING_BYTES: usize = 4096;

/// Which link a connection is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) link: LinkId,
    /// Shared memory that the sender has created, if any.
    pub(super) ring: Option<AnnouncedRing>,
    /// The identifier of the NCCL communicator for all that the sender sends to this rank, if it has a GPU.
    pub(super) communicator: Option<Vec<u8>>,
}

/// A ring: no name and no path, since both ends derive them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AnnouncedRing {
    /// Distinguishes it from all other rings of this link.
    pub(super) nonce: String,
    /// Its size.
    pub(super) bytes: usize,
}

impl Greeting {
    /// Greets the receiver on a new connection; returns its answer, and the connection's stream for payloads. Reads wait as
    /// long as the socket's timeout says.
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

/// What both ends of a link must agree on before one learns anything of the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkSecurity<'a> {
    pub(super) secret: &'a GroupSecret,
    pub(super) encryption: Encryption,
}

impl LinkSecurity<'_> {
    /// What distinguishes these handshakes from those of control connections, and of links with the other encryption.
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
    /// When it is closed.
    pub(super) deadline: Instant,
}

#[derive(Debug)]
enum GreetingState {
    /// The first message of the handshake, and how many bytes of it have arrived.
    Handshake([u8; HANDSHAKE_BYTES], usize),
    Greeting(Session, SecureReader<TcpStream>, FrameReader),
}

impl PendingConnection {
    pub(super) fn new(stream: TcpStream) -> io::Result<PendingConnection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let state = GreetingState::Handshake([0; HANDSHAKE_BYTES], 0);
        Ok(PendingConnection { stream, state, deadline: Instant::now() + GREETING_TIMEOUT })
    }

    /// Reads what has arrived, and not a byte beyond the greeting; `None` if more is to come.
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
                    // the first bytes that go out: the socket's buffer takes them
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

    /// Answers the greeting; returns the socket, and the stream on which payloads follow.
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
