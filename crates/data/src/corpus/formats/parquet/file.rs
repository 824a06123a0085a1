//! A Parquet file as the library reads it. The library reads page by page; a source gets few, large requests: the
//! footer, then the column's chunks in windows.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::catch_panic::catch_panic;
use crate::corpus::CorpusFile;
use crate::error::DataError;

/// Bytes at the end of a file that are read at once. They hold the metadata of most files.
const FOOTER_BYTES: u64 = 64 << 10;

/// Bytes of a column chunk that are read at once.
const WINDOW_BYTES: u64 = 8 << 20;

/// A file with a window of its bytes. Clones share the window.
#[derive(Clone)]
pub(super) struct ParquetFile(Arc<Shared>);

struct Shared {
    file: CorpusFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Position of the window in the file.
    start: u64,
    window: Bytes,
    /// The end of the column chunk that the library is reading. No window extends beyond it unless a read does.
    chunk_end: u64,
    /// The error of the source that made a call of the library fail. The library reports only its text.
    failure: Option<io::Error>,
}

impl ParquetFile {
    pub(super) fn new(file: &CorpusFile) -> ParquetFile {
        ParquetFile(Arc::new(Shared { file: file.clone(), state: Mutex::default() }))
    }

    /// The result of a call of the library, which panics on some damaged files.
    ///
    /// # Errors
    /// Fails if the source can't be read, or with `Parquet` if the file is damaged.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
        let path = &self.0.file.path;
        let damaged = || Err(ParquetError::General("it is damaged, write or copy it again".to_owned()));
        catch_panic(call).unwrap_or_else(damaged).map_err(|error| match self.state(|state| state.failure.take()) {
            Some(failure) => DataError::io("read", path)(failure),
            None => DataError::Parquet { path: path.clone(), problem: error.to_string() },
        })
    }

    /// Announces that the library reads the column chunk with these bytes next.
    pub(super) fn expect_chunk(&self, bytes: Range<u64>) {
        self.state(|state| state.chunk_end = bytes.end);
    }

    /// These bytes, or fewer if the file ends before them.
    fn bytes(&self, start: u64, length: u64) -> io::Result<Bytes> {
        let size = self.0.file.stamp.size;
        let end = start.saturating_add(length).min(size);
        if start >= end {
            return Ok(Bytes::new());
        }
        self.state(|state| {
            let window = state.start..state.start + state.window.len() as u64;
            if start < window.start || end > window.end {
                let wanted = if start >= size.saturating_sub(FOOTER_BYTES) && state.window.is_empty() {
                    size.saturating_sub(FOOTER_BYTES)..size
                } else {
                    start..end.max(state.chunk_end.min(start.saturating_add(WINDOW_BYTES)))
                };
                state.window = self.read(wanted.clone())?;
                state.start = wanted.start;
            }
            let from = (start - state.start) as usize;
            let to = state.window.len().min(from + (end - start) as usize);
            Ok(state.window.slice(from.min(to)..to))
        })
    }

    fn read(&self, bytes: Range<u64>) -> io::Result<Bytes> {
        let mut read = Vec::with_capacity((bytes.end - bytes.start) as usize);
        self.0.file.open(bytes)?.read_to_end(&mut read)?;
        Ok(read.into())
    }

    /// [`ParquetFile::bytes`] for the library. The error is kept for [`ParquetFile::call`].
    fn bytes_or_keep_error(&self, start: u64, length: u64) -> io::Result<Bytes> {
        self.bytes(start, length).map_err(|error| {
            let text = error.to_string();
            self.state(|state| state.failure = Some(error));
            io::Error::other(text)
        })
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.0.file.stamp.size
    }
}

impl ChunkReader for ParquetFile {
    type T = FromPosition;

    fn get_read(&self, start: u64) -> Result<FromPosition, ParquetError> {
        Ok(FromPosition { file: self.clone(), position: start })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.bytes_or_keep_error(start, length as u64)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => Err(ParquetError::EOF(format!("it has {} of {length} bytes from byte {start} on", bytes.len()))),
        }
    }
}

/// A reader of the file from a position on.
pub(super) struct FromPosition {
    file: ParquetFile,
    position: u64,
}

impl Read for FromPosition {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // a page's header is some tens of bytes, and the library reads it byte by byte
        let bytes = self.file.bytes_or_keep_error(self.position, into.len() as u64)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }
}
