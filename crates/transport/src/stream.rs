//! The connection of a link after its greeting: unencrypted or encrypted.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use stagecoach_group::{SecureReader, SecureWriter};

/// Both directions of a link's connection.
#[derive(Debug)]
pub(super) enum LinkStream {
    Clear(TcpStream),
    Encrypted(SecureReader<TcpStream>, SecureWriter<TcpStream>),
}

impl Read for LinkStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LinkStream::Clear(stream) => stream.read(buffer),
            LinkStream::Encrypted(reader, _) => reader.read(buffer),
        }
    }
}

impl Write for LinkStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LinkStream::Clear(stream) => stream.write(bytes),
            LinkStream::Encrypted(_, writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
