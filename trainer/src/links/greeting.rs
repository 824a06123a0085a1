//! What the sender of a link sends first: one frame, as on the control connection.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stagecoach_group::frame::{FrameReader, encode_frame};

use super::LinkId;

/// How long a connection may take to send its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// More bytes than any greeting has.
const MAX_GREETING_BYTES: usize = 4096;

/// Which link a connection is, and of which group.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) group: String,
    pub(super) link: LinkId,
    /// Shared memory that the sender has created, if any.
    pub(super) ring: Option<AnnouncedRing>,
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
    pub(super) fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let frame = encode_frame(self, MAX_GREETING_BYTES).map_err(io::Error::other)?;
        stream.write_all(&frame)
    }
}

/// An accepted connection whose greeting has not arrived completely.
#[derive(Debug)]
pub(super) struct PendingConnection {
    pub(super) stream: TcpStream,
    greeting: FrameReader,
    /// When it is closed.
    pub(super) deadline: Instant,
}

impl PendingConnection {
    pub(super) fn new(stream: TcpStream) -> io::Result<PendingConnection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let greeting = FrameReader::new(MAX_GREETING_BYTES);
        Ok(PendingConnection { stream, greeting, deadline: Instant::now() + GREETING_TIMEOUT })
    }

    /// Reads what has arrived, and not a byte beyond the greeting; `None` if more is to come.
    pub(super) fn read_greeting(&mut self) -> io::Result<Option<Greeting>> {
        match self.greeting.read(&mut self.stream) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            read => read.map(Some),
        }
    }
}
