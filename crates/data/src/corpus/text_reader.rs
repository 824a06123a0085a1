//! Reads the text of a corpus file as bytes: decompressed, and without a byte order mark. The mark at the start of a
//! file shows the file's encoding. In UTF-8 the mark is not part of the text (RFC 3629, section 6).

use std::io::{self, BufRead, Read};

use super::CorpusFile;
use super::compression::{Blocks, Compression, Decoder, NoText};
use crate::error::DataError;

/// The number of decompressed bytes from which the size of a whole text is estimated.
const SAMPLE_BYTES: u64 = 1 << 20;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The byte order marks of encodings other than UTF-8, with the names that `iconv` uses. The longer marks come first,
/// because a UTF-16 mark is the start of a UTF-32 mark.
const FOREIGN_MARKS: [(&[u8], &str); 4] =
    [(b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// Reads the text of a file.
pub(super) struct TextReader {
    blocks: Blocks<Decoder>,
    /// The position in the file's text at which `blocks` begins.
    start: u64,
}

impl TextReader {
    /// Returns the position in the file's text, in decompressed bytes. The bytes of a byte order mark count.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.blocks.consumed
    }

    /// Returns the number of bytes of the file that hold the text up to `offset`, a position that has been read. For a
    /// compressed file, this is the number of all compressed bytes that the decoder has consumed.
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
    /// Opens the text of the file for reading from `offset` on. At offset 0, reading begins after a byte order mark. A
    /// compressed file is decompressed from its beginning.
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
            let mark = length(reader.fill_buf()?).map_err(io::Error::other)?;
            reader.consume(mark);
        }
        Ok(reader)
    }

    /// Returns a function for `map_err` that converts an error of reading the file's text.
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

    /// Returns the number of bytes of the file's text. For a compressed file, the number is an estimate from the first
    /// bytes.
    ///
    /// # Errors
    /// Fails like [`CorpusFile::open_text`].
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

/// Returns the size in bytes of the byte order mark at the start of a text, or 0 if the text has none.
///
/// # Errors
/// Fails with `OtherEncoding` if the mark belongs to an encoding other than UTF-8.
fn length(text: &[u8]) -> Result<usize, NoText> {
    match FOREIGN_MARKS.iter().find(|(mark, _)| text.starts_with(mark)) {
        Some((_, encoding)) => Err(NoText::OtherEncoding(encoding)),
        None if text.starts_with(BYTE_ORDER_MARK) => Ok(BYTE_ORDER_MARK.len()),
        None => Ok(0),
    }
}
