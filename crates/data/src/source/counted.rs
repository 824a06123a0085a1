//! A source that counts the bytes that are read from it.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Source, SourceFile, SourceListing};
use crate::error::DataError;

/// Wraps a source, and counts the bytes that its readers return.
#[derive(Debug)]
pub(crate) struct CountedSource {
    /// The wrapped source.
    pub(crate) source: Arc<dyn Source>,
    /// The counter, which grows with every byte.
    pub(crate) bytes: Arc<AtomicU64>,
}

struct CountedReader {
    reader: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Source for CountedSource {
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError> {
        self.source.list(pattern)
    }

    fn is_unchanged(&self, file: &SourceFile) -> Result<bool, DataError> {
        self.source.is_unchanged(file)
    }

    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let reader = self.source.open(file, bytes)?;
        Ok(Box::new(CountedReader { reader, bytes: Arc::clone(&self.bytes) }))
    }

    fn verifies_whole_files(&self) -> bool {
        self.source.verifies_whole_files()
    }
}

impl Read for CountedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::LocalFiles;

    #[test]
    fn every_byte_counts_also_if_the_reader_drops_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), [b'a'; 1000]).unwrap();
        let source = Arc::new(LocalFiles::below(folder.path()).unwrap());
        let file = source.list("a.txt").unwrap().files.remove(0);
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = CountedSource { source, bytes: Arc::clone(&bytes) };
        let mut reader = counted.open(&file, 0..900).unwrap();
        io::copy(&mut reader.by_ref().take(300), &mut io::sink()).unwrap();
        assert_eq!(bytes.load(Ordering::Relaxed), 300);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert_eq!(bytes.load(Ordering::Relaxed), 900);
    }
}
