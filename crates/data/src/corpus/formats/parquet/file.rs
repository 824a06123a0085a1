//! Gives the Parquet library access to a file of a source. The library reads page by page, and alternates between
//! columns. This module sends few, large requests to the source: first for the footer, then for windows of the column
//! chunks. A window is a range of the file's bytes in memory.

use std::io::{self, Read};
use std::iter;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::catch_panic::catch_panic;
use crate::corpus::CorpusFile;
use crate::error::DataError;

/// The number of bytes that one request reads at the end of a file. These bytes contain the whole metadata of most
/// files.
const FOOTER_BYTES: u64 = 64 << 10;

/// The memory budget, in bytes, for the windows of all column chunks together. The windows of many chunks exceed the
/// budget, because each window may have [`MIN_WINDOW_BYTES`].
const WINDOW_BYTES: u64 = 8 << 20;

/// The smallest window of a column chunk in bytes.
const MIN_WINDOW_BYTES: u64 = 1 << 20;

/// A file, with windows of its bytes in memory. Clones share the windows.
#[derive(Clone)]
pub(super) struct ParquetFile(Arc<SharedFile>);

struct SharedFile {
    file: CorpusFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The window for bytes outside of the column chunks, such as the footer.
    other: ByteWindow,
    /// A window for each column chunk that the library is reading.
    chunks: Vec<ByteWindow>,
    /// The source's error that made a call of the library fail. It is stored here, because the library reports only the
    /// text of the error.
    failure: Option<io::Error>,
}

/// A range of the file's bytes in memory.
#[derive(Default)]
struct ByteWindow {
    /// The part of the file that the window moves over. A window ends with its part, unless a read of the library ends
    /// later.
    part: Range<u64>,
    /// The number of bytes that one request reads.
    length: u64,
    /// The position of `bytes` in the file.
    start: u64,
    bytes: Bytes,
}

impl ParquetFile {
    pub(super) fn new(file: &CorpusFile) -> ParquetFile {
        ParquetFile(Arc::new(SharedFile { file: file.clone(), state: Mutex::default() }))
    }

    /// Returns the result of a call of the library. The library panics on some damaged files, and this function turns
    /// the panic into an error.
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

    /// Makes windows for the column chunks that the library reads next. The library alternates between these chunks.
    pub(super) fn expect_chunks(&self, chunks: Vec<Range<u64>>) {
        let start = chunks.iter().map(|chunk| chunk.start).min().unwrap_or_default();
        let end = chunks.iter().map(|chunk| chunk.end).max().unwrap_or_default();
        let bytes = |chunk: &Range<u64>| chunk.end.saturating_sub(chunk.start);
        let total = chunks.iter().map(bytes).fold(0, u64::saturating_add);
        // one request reads small chunks that are close together
        let span = bytes(&(start..end));
        let parts = match span <= WINDOW_BYTES && span / 2 <= total {
            true => iter::once(start..end).collect(),
            false => chunks,
        };
        let window = |part: Range<u64>| {
            // windows of these lengths end at about the same row in all columns
            let share = WINDOW_BYTES as f64 * bytes(&part) as f64 / total.max(1) as f64;
            let length = (share as u64).clamp(MIN_WINDOW_BYTES, WINDOW_BYTES);
            ByteWindow { start: part.start, part, length, bytes: Bytes::new() }
        };
        self.state(|state| state.chunks = parts.into_iter().map(window).collect());
    }

    /// Returns `length` bytes from `start` on, or fewer if the file ends earlier.
    fn bytes(&self, start: u64, length: u64) -> io::Result<Bytes> {
        let size = self.0.file.stamp.size;
        let end = start.saturating_add(length).min(size);
        if start >= end {
            return Ok(Bytes::new());
        }
        self.state(|state| {
            let State { other, chunks, .. } = state;
            if let Some(window) = chunks.iter().chain([&*other]).find(|window| window.has(start..end)) {
                return Ok(window.slice(start..end));
            }
            let chunk = chunks.iter_mut().find(|window| window.part.contains(&start));
            let (window, wanted) = match chunk {
                Some(window) => {
                    let wanted = start..end.max(window.part.end.min(start.saturating_add(window.length)));
                    (window, wanted)
                }
                None if other.bytes.is_empty() && start >= size.saturating_sub(FOOTER_BYTES) => {
                    (other, size.saturating_sub(FOOTER_BYTES)..size)
                }
                None => (other, start..end),
            };
            window.bytes = self.read(wanted.start..wanted.end.min(size))?;
            window.start = wanted.start;
            Ok(window.slice(start..end))
        })
    }

    fn read(&self, bytes: Range<u64>) -> io::Result<Bytes> {
        let mut read = Vec::with_capacity((bytes.end - bytes.start) as usize);
        self.0.file.open(bytes)?.read_to_end(&mut read)?;
        Ok(read.into())
    }

    /// Like [`ParquetFile::bytes`], but stores an error for [`ParquetFile::call`], because the library reports only the
    /// error's text.
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

impl ByteWindow {
    /// Whether the window contains all of `bytes`.
    fn has(&self, bytes: Range<u64>) -> bool {
        self.start <= bytes.start && bytes.end <= self.start + self.bytes.len() as u64
    }

    /// Returns the bytes of the range `bytes`, which begins in the window. If the window ends within the range, the
    /// result ends there.
    fn slice(&self, bytes: Range<u64>) -> Bytes {
        let length = self.bytes.len();
        let [from, to] = [bytes.start, bytes.end].map(|at| length.min(at.saturating_sub(self.start) as usize));
        self.bytes.slice(from..to)
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

/// Reads the file from a position on.
pub(super) struct FromPosition {
    file: ParquetFile,
    position: u64,
}

impl Read for FromPosition {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // the library reads the header of a page, some tens of bytes, byte by byte, so the bytes come from a window
        let bytes = self.file.bytes_or_keep_error(self.position, into.len() as u64)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }
}
