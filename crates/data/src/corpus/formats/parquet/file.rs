//! A Parquet file as the library reads it. The library reads page by page, and alternates between columns; a source
//! gets few, large requests: the footer, then the chunks of the columns in windows.

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

/// Bytes at the end of a file that are read at once. They hold the metadata of most files.
const FOOTER_BYTES: u64 = 64 << 10;

/// Bytes of the column chunks that are read at once, which the chunks share.
const WINDOW_BYTES: u64 = 8 << 20;

/// The least share of a chunk.
const MIN_WINDOW_BYTES: u64 = 1 << 20;

/// A file with windows of its bytes. Clones share the windows.
#[derive(Clone)]
pub(super) struct ParquetFile(Arc<Shared>);

struct Shared {
    file: CorpusFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The window of what is in no chunk, such as the footer.
    other: Window,
    /// A window for each column chunk that the library is reading.
    chunks: Vec<Window>,
    /// The error of the source that made a call of the library fail. The library reports only its text.
    failure: Option<io::Error>,
}

/// Bytes of a part of the file that are in memory.
#[derive(Default)]
struct Window {
    /// The part of the file. No window extends beyond it unless a read does.
    part: Range<u64>,
    /// Bytes that are read at once.
    length: u64,
    /// Position of the window in the file.
    start: u64,
    bytes: Bytes,
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

    /// Announces that the library reads the column chunks with these bytes next, in turn.
    pub(super) fn expect_chunks(&self, chunks: Vec<Range<u64>>) {
        let start = chunks.iter().map(|chunk| chunk.start).min().unwrap_or_default();
        let end = chunks.iter().map(|chunk| chunk.end).max().unwrap_or_default();
        let bytes = |chunk: &Range<u64>| chunk.end.saturating_sub(chunk.start);
        let total = chunks.iter().map(bytes).fold(0, u64::saturating_add);
        // small chunks that lie together are one request
        let span = bytes(&(start..end));
        let parts = match span <= WINDOW_BYTES && span / 2 <= total {
            true => iter::once(start..end).collect(),
            false => chunks,
        };
        let window = |part: Range<u64>| {
            // columns come to the ends of such windows at the same row, about
            let share = WINDOW_BYTES as f64 * bytes(&part) as f64 / total.max(1) as f64;
            let length = (share as u64).clamp(MIN_WINDOW_BYTES, WINDOW_BYTES);
            Window { start: part.start, part, length, bytes: Bytes::new() }
        };
        self.state(|state| state.chunks = parts.into_iter().map(window).collect());
    }

    /// These bytes, or fewer if the file ends before them.
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

impl Window {
    /// Whether the window has these bytes.
    fn has(&self, bytes: Range<u64>) -> bool {
        self.start <= bytes.start && bytes.end <= self.start + self.bytes.len() as u64
    }

    /// These bytes, which begin in the window, or fewer if the window ends before them.
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
