//! Frames: a length (u32, little endian), then a message of this length in bytes, encoded with postcard.

use std::io::{self, ErrorKind, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::GroupError;

const PREFIX_BYTES: usize = size_of::<u32>();

/// Encodes a frame of at most `max_bytes` bytes with its length prefix, for a single write.
///
/// # Errors
/// Returns [`GroupError::FrameTooLarge`] if the frame exceeds `max_bytes`, or another error if the value can't be
/// encoded.
pub fn encode_frame<T: Serialize>(value: &T, max_bytes: usize) -> Result<Vec<u8>, GroupError> {
    // the buffer begins with space for the prefix, so that a single write sends the whole frame
    let mut bytes = postcard::to_extend(value, vec![0; PREFIX_BYTES])
        .map_err(|error| GroupError::io("a message can't be encoded")(io::Error::other(error)))?;
    let length = bytes.len() - PREFIX_BYTES;
    let prefix = u32::try_from(length).ok().filter(|_| length <= max_bytes);
    let Some(prefix) = prefix else { return Err(GroupError::FrameTooLarge { bytes: length, max_bytes }) };
    bytes[..PREFIX_BYTES].copy_from_slice(&prefix.to_le_bytes());
    Ok(bytes)
}

/// Reads one frame, in one call, or in several calls from a non-blocking stream.
#[derive(Debug)]
pub struct FrameReader {
    max_bytes: usize,
    buffer: Vec<u8>,
    received: usize,
}

impl FrameReader {
    /// Creates a reader for one frame of at most `max_bytes` bytes.
    pub fn new(max_bytes: usize) -> FrameReader {
        FrameReader { max_bytes, buffer: vec![0; PREFIX_BYTES], received: 0 }
    }

    /// Reads until the frame is complete. No byte beyond the frame is read.
    ///
    /// # Errors
    /// Returns `WouldBlock` or `TimedOut` if a part of the frame has not arrived: the next call continues with the
    /// rest. Returns `UnexpectedEof` if the stream ends inside the frame, `InvalidData` if the frame is too large or
    /// can't be decoded, or any other error of the stream.
    pub fn read<T: DeserializeOwned>(&mut self, stream: &mut impl Read) -> io::Result<T> {
        loop {
            let end = self.end()?;
            if self.received == end {
                return postcard::from_bytes(&self.buffer[PREFIX_BYTES..])
                    .map_err(|error| invalid(format!("a message that can't be decoded ({error})")));
            }
            self.buffer.resize(end, 0);
            match stream.read(&mut self.buffer[self.received..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.received += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the number of bytes needed so far: the prefix, then the whole frame once its length is known.
    fn end(&self) -> io::Result<usize> {
        match self.buffer.first_chunk() {
            Some(prefix) if self.received >= PREFIX_BYTES => {
                let length = u32::from_le_bytes(*prefix) as usize;
                match length > self.max_bytes {
                    true => {
                        Err(invalid(format!("a message of {length} bytes, at most {} are allowed", self.max_bytes)))
                    }
                    false => Ok(PREFIX_BYTES + length),
                }
            }
            _ => Ok(PREFIX_BYTES),
        }
    }
}

/// Reads one frame of at most `max_bytes` bytes; see [`FrameReader::read`].
pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read, max_bytes: usize) -> io::Result<T> {
    FrameReader::new(max_bytes).read(stream)
}

pub(crate) fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

/// Whether a read ended because nothing arrived within the socket's timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A stream that returns one byte per read, and `WouldBlock` before each byte.
    pub(crate) struct SlowStream<'a> {
        pub(crate) bytes: &'a [u8],
        pub(crate) blocked: bool,
    }

    impl Read for SlowStream<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.blocked = !self.blocked;
            if self.blocked {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.bytes.read(&mut buffer[..1])
        }
    }

    #[test]
    fn a_frame_round_trips_and_nothing_is_read_beyond_it() {
        let value = (7u32, vec![1u8, 2, 3]);
        let mut bytes = encode_frame(&value, 64).unwrap();
        bytes.push(9);
        let mut stream = &bytes[..];
        assert_eq!(read_frame::<(u32, Vec<u8>)>(&mut stream, 64).unwrap(), value);
        assert_eq!(stream, [9]);
        // a stream that delivers single bytes gives the same frame
        let mut slow = SlowStream { bytes: &bytes, blocked: false };
        let mut reader = FrameReader::new(64);
        let read = loop {
            match reader.read::<(u32, Vec<u8>)>(&mut slow) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => break read,
            }
        };
        assert_eq!((read.unwrap(), slow.bytes), (value, &[9][..]));
        // an empty frame is valid
        assert_eq!(encode_frame(&(), 0).unwrap(), [0; 4]);
        read_frame::<()>(&mut &[0; 4][..], 0).unwrap();
    }

    #[test]
    fn frames_are_bounded_on_both_sides() {
        assert!(matches!(
            encode_frame(&vec![0u8; 64], 64),
            Err(GroupError::FrameTooLarge { bytes: 65, max_bytes: 64 })
        ));
        // a length alone must not make the reader allocate
        let error = read_frame::<()>(&mut &u32::MAX.to_le_bytes()[..], 64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("at most 64"), "{error}");
    }

    #[test]
    fn a_frame_that_is_cut_off_or_undecodable_is_an_error() {
        let error = read_frame::<bool>(&mut &[1, 0, 0, 0, 99][..], 64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        for cut in 0..5 {
            let error = read_frame::<bool>(&mut &[1, 0, 0, 0, 1][..cut], 64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }
}
