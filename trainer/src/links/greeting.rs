//! What the sender of an link says first: a length and JSON, since greetings are few and small.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::LinkId;

/// How long a connection may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// More bytes than any greeting has.
const LONGEST: usize = 4096;

/// Which link a connection is, and of which group.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Greeting {
    pub(super) group: String,
    pub(super) link: LinkId,
    /// Shared memory that the sender has made, if any.
    pub(super) ring: Option<Announced>,
}

/// A ring: no name and no path, since both ends know how it is called.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Announced {
    /// Tells it from all other rings of this link.
    pub(super) nonce: String,
    /// Its size.
    pub(super) bytes: usize,
}

impl Greeting {
    pub(super) fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        stream.write_all(&(text.len() as u32).to_le_bytes())?;
        stream.write_all(&text)
    }
}

/// A connection that has not said all of its greeting yet.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) stream: TcpStream,
    heard: Vec<u8>,
    /// When it is sent away.
    pub(super) until: Instant,
}

impl Guest {
    pub(super) fn new(stream: TcpStream) -> io::Result<Guest> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Guest { stream, heard: Vec::new(), until: Instant::now() + PATIENCE })
    }

    /// Reads what is there, and not a byte beyond the greeting; none if there is more to come.
    pub(super) fn hear(&mut self) -> io::Result<Option<Greeting>> {
        loop {
            let end = match self.heard.first_chunk() {
                None => 4,
                Some(&length) => 4 + u32::from_le_bytes(length) as usize,
            };
            if end > 4 + LONGEST {
                return Err(io::Error::other("not a greeting"));
            }
            let known = self.heard.len();
            if known >= 4 && known == end {
                return Ok(Some(serde_json::from_slice(&self.heard[4..])?));
            }
            self.heard.resize(end, 0);
            let read = self.stream.read(&mut self.heard[known..]);
            self.heard.truncate(known + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}
