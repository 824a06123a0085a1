//! The text of a corpus file as bytes: decompressed, and without a byte order mark.

use std::io::{self, BufRead, Read};

use super::compression::{Blocks, Compression, Decoder, NoText};
use super::{CorpusFile, byte_order_mark};
use crate::error::DataError;

/// Decompressed bytes from which the text of a whole file is estimated.
const SAMPLE_BYTES: u64 = 1 << 20;

/// Reads the text of a file.
pub(super) struct TextReader {
    blocks: Blocks<Decoder>,
    /// The position in the file's text at which `blocks` begin.
    start: u64,
}

impl TextReader {
    /// The position in the file's text, in decompressed bytes. A byte order mark counts.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.blocks.consumed
    }

    /// The bytes of the file that hold the text up to `offset`, a position that is already read. For a compressed file,
    /// these are the bytes that are decompressed by now.
    pub(super) fn file_bytes(&self, offset: u64) -> u64 {
        self.blocks.reader.compressed().map_or(offset, |compressed| compressed.consumed)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut self.take(bytes), &mut io::sink()).map(drop)
    }
}

impl Read for TextReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.blocks.read(into)
    }
}

impl BufRead for TextReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.blocks.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.blocks.consume(bytes);
    }
}

impl CorpusFile {
    /// Opens the text of the file for reading from `offset` on, or after the byte order mark. A compressed file is
    /// decompressed from its beginning.
    ///
    /// # Errors
    /// Fails if the source can't be read, if the file can't be decompressed, or if its byte order mark belongs to an
    /// encoding other than UTF-8.
    pub(super) fn open_text(&self, offset: u64) -> Result<TextReader, DataError> {
        self.try_open_text(offset).map_err(self.read_failed())
    }

    fn try_open_text(&self, offset: u64) -> io::Result<TextReader> {
        let (start, skipped) = if self.compression.is_some() { (0, offset) } else { (offset, 0) };
        let blocks = Blocks::new(Decoder::new(self.open_at(start)?, self.compression)?);
        let mut reader = TextReader { blocks, start };
        if offset > 0 {
            reader.skip(skipped)?;
        } else {
            let mark = byte_order_mark::length(reader.fill_buf()?).map_err(io::Error::other)?;
            reader.consume(mark);
        }
        Ok(reader)
    }

    /// For `map_err`: wraps an error of reading the file's text.
    pub(super) fn read_failed(&self) -> impl FnOnce(io::Error) -> DataError {
        |error| match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(NoText::Damaged(problem)) => {
                DataError::Compressed { path: self.path.clone(), problem: problem.clone() }
            }
            Some(NoText::OtherEncoding(encoding)) => DataError::OtherEncoding {
                path: self.path.clone(),
                encoding,
                decompress: self.compression.map(Compression::command),
            },
            None => DataError::io("read", &self.path)(error),
        }
    }

    /// Bytes of the file's text. For a compressed file, this is an estimate from the first bytes.
    ///
    /// # Errors
    /// Like [`CorpusFile::open_text`].
    pub(crate) fn text_bytes(&self) -> Result<u64, DataError> {
        if self.compression.is_none() {
            return Ok(self.stamp.size);
        }
        let mut reader = self.open_text(0)?;
        reader.skip(SAMPLE_BYTES).map_err(self.read_failed())?;
        let (bytes, of_file) = (reader.offset(), reader.file_bytes(reader.offset()));
        Ok((bytes as f64 * self.stamp.size as f64 / of_file.max(1) as f64) as u64)
    }
}
