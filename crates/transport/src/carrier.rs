//! The carriers of payloads other than NCCL: the link's TCP stream, or shared memory. The stream carries the headers in
//! both cases.

use std::io::{self, Read, Write};

use super::shm::{RingReader, RingWriter};
use super::stream::LinkStream;

/// The sending half of a carrier.
#[derive(Debug)]
pub(super) enum Outgoing {
    Stream,
    Ring(RingWriter),
}

impl Outgoing {
    /// Sends a header and its payload; returns once the payload's memory may be reused.
    pub(super) fn put(&mut self, stream: &mut LinkStream, header: &[u8], payload: &[u8]) -> io::Result<()> {
        match self {
            Outgoing::Stream => {
                stream.write_all(header)?;
                stream.write_all(payload)
            }
            Outgoing::Ring(ring) => {
                ring.put(payload, stream)?;
                stream.write_all(header)
            }
        }
    }
}

/// The receiving half of a carrier.
#[derive(Debug)]
pub(super) enum Incoming {
    Stream,
    Ring(RingReader),
}

impl Incoming {
    /// Fills `into` with the payload of the header that was read last.
    pub(super) fn take(&mut self, stream: &mut LinkStream, into: &mut [u8]) -> io::Result<()> {
        match self {
            Incoming::Stream => stream.read_exact(into),
            Incoming::Ring(ring) => ring.take(into, stream),
        }
    }
}
