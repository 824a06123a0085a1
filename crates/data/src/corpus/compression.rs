//! Compressed corpus files: their extensions, and the decoders of their bytes.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

/// The compression of a corpus file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// One or more gzip members (RFC 1952).
    Gzip,
    /// One or more Zstandard frames (RFC 8878).
    Zstd,
}

impl Compression {
    /// All compressions.
    pub const ALL: [Compression; 2] = [Compression::Gzip, Compression::Zstd];

    /// Returns the extension of the files, without the dot. Corpus hashes contain the extension, so it never changes.
    pub const fn extension(self) -> &'static str {
        match self {
            Compression::Gzip => "gz",
            Compression::Zstd => "zst",
        }
    }

    /// Returns the command that prints the contents of a compressed file.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip -dc",
            Compression::Zstd => "zstd -dc",
        }
    }
}

/// A reader of the bytes of a source's file.
pub(super) type SourceReader = Box<dyn Read + Send>;

/// Decompresses the bytes of a file while they are read.
pub(super) enum Decoder {
    Plain(SourceReader),
    Gzip(MultiGzDecoder<Blocks<SourceReader>>),
    Zstd(ZstdDecoder<'static, Blocks<SourceReader>>),
}

impl Decoder {
    pub(super) fn new(file: SourceReader, compression: Option<Compression>) -> io::Result<Decoder> {
        Ok(match compression {
            None => Decoder::Plain(file),
            Some(Compression::Gzip) => Decoder::Gzip(MultiGzDecoder::new(Blocks::new(file))),
            Some(Compression::Zstd) => Decoder::Zstd(ZstdDecoder::with_buffer(Blocks::new(file))?),
        })
    }

    /// Returns the reader of the compressed bytes, or `None` for a file that is not compressed.
    pub(super) fn compressed(&self) -> Option<&Blocks<SourceReader>> {
        match self {
            Decoder::Plain(_) => None,
            Decoder::Gzip(decoder) => Some(decoder.get_ref()),
            Decoder::Zstd(decoder) => Some(decoder.get_ref()),
        }
    }
}

impl Read for Decoder {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Decoder::Plain(file) => return file.read(into),
            Decoder::Gzip(decoder) => decoder.read(into),
            Decoder::Zstd(decoder) => decoder.read(into),
        };
        match read {
            Err(error) if self.compressed().is_some_and(|blocks| !blocks.has_failed) => Err(damaged(&error)),
            read => read,
        }
    }
}

/// Returns the error for a file that the source can read but the decoder can't decompress.
fn damaged(error: &io::Error) -> io::Error {
    io::Error::other(NoText::Damaged(match error.kind() {
        io::ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
        _ => error.to_string(),
    }))
}

/// The reason why the bytes of a file are not text. It is the inner error of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
pub(super) enum NoText {
    #[error("can't be decompressed: {0}")]
    Damaged(String),
    #[error("is in {0} according to its byte order mark, not in UTF-8")]
    OtherEncoding(&'static str),
}

/// Reads whole blocks. The number of compressed bytes that a decoder has consumed at a position in its output therefore
/// depends only on the position, not on where reading began or on how many bytes the source returns at once.
pub(super) struct Blocks<R> {
    pub(super) reader: R,
    block: Vec<u8>,
    /// The number of consumed bytes of `block`.
    at: usize,
    /// The number of consumed bytes of all blocks.
    pub(super) consumed: u64,
    has_failed: bool,
}

const BLOCK_BYTES: usize = 64 << 10;

impl<R: Read> Blocks<R> {
    pub(super) fn new(reader: R) -> Blocks<R> {
        Blocks { reader, block: Vec::new(), at: 0, consumed: 0, has_failed: false }
    }

    fn read_block(&mut self) -> io::Result<()> {
        self.at = 0;
        self.block.resize(BLOCK_BYTES, 0);
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.reader.read(&mut self.block[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.block.clear();
                    self.has_failed = true;
                    return Err(error);
                }
            }
        }
        self.block.truncate(filled);
        Ok(())
    }
}

impl<R: Read> BufRead for Blocks<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.block.len() {
            self.read_block()?;
        }
        Ok(&self.block[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
        self.consumed += bytes as u64;
    }
}

impl<R: Read> Read for Blocks<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?.read(into)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::compressed;

    /// A file whose reads fail, as on a failing volume.
    struct Unreachable;

    impl Read for Unreachable {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }

    /// The error must tell a failing volume from a damaged file, because a retry helps only if the volume failed.
    #[test]
    fn a_failing_volume_is_no_damage() {
        for compression in Compression::ALL {
            let whole = compressed(&[b"a b c d"], compression.extension());
            for bytes in [0, 2, whole.len() / 2, whole.len()] {
                let read = |file: SourceReader| {
                    Decoder::new(file, Some(compression))
                        .and_then(|mut decoder| io::copy(&mut decoder, &mut io::sink()))
                };
                let start = whole[..bytes].to_vec();
                let failed = read(Box::new(io::Cursor::new(start.clone()).chain(Unreachable))).unwrap_err();
                assert_eq!(failed.kind(), io::ErrorKind::TimedOut, "{compression:?} {bytes}: {failed}");
                let cut_off = read(Box::new(io::Cursor::new(start)));
                assert_eq!(cut_off.is_ok(), bytes == whole.len(), "{compression:?} {bytes}");
                let message =
                    cut_off.map_or_else(|error| error.to_string(), |_| "can't be decompressed: it is cut off".into());
                assert_eq!(message, "can't be decompressed: it is cut off");
            }
        }
    }
}
