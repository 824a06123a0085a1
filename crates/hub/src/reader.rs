//! Reads files from the cache or from the hub.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::HubError;
use crate::file::CommitFile;
use crate::hub::Hub;
use crate::remote::RangeReader;

/// A reader that selects the cache or the hub at its first read.
pub(crate) struct HubReader {
    hub: Arc<Hub>,
    source: CommitFile,
    range: Range<u64>,
    place: ReadPlace,
}

enum ReadPlace {
    Unknown,
    Cache(io::Take<File>, PathBuf),
    // the reader is in a box, because it is much larger than the other variants
    Hub(Box<RangeReader>),
}

impl HubReader {
    pub(crate) fn new(hub: Arc<Hub>, source: CommitFile, range: Range<u64>) -> HubReader {
        HubReader { hub, source, range, place: ReadPlace::Unknown }
    }

    /// Returns the cached file or the host from which the bytes come; empty before the first read.
    pub(crate) fn place(&self) -> String {
        match &self.place {
            ReadPlace::Unknown => String::new(),
            ReadPlace::Cache(_, path) => path.display().to_string(),
            ReadPlace::Hub(remote) => remote.host().to_owned(),
        }
    }

    fn locate(&self) -> Result<ReadPlace, HubError> {
        let CommitFile { repo, commit, file } = &self.source;
        if let Some(path) = self.hub.cache.as_ref().and_then(|cache| cache.file(repo, commit, file)) {
            let bytes = open(&path, &self.range).map_err(|error| HubError::file("read", &path, &error))?;
            return Ok(ReadPlace::Cache(bytes, path));
        }
        if self.hub.is_offline {
            return Err(self.hub.not_cached(self.source.to_string()));
        }
        Ok(ReadPlace::Hub(Box::new(RangeReader::new(self.hub.clone(), self.source.clone(), self.range.clone()))))
    }
}

impl Read for HubReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // a read of an empty range sends no request
        if self.range.is_empty() {
            return Ok(0);
        }
        if let ReadPlace::Unknown = self.place {
            self.place = self.locate()?;
        }
        match &mut self.place {
            ReadPlace::Unknown => Ok(0),
            ReadPlace::Hub(remote) => remote.read(buffer),
            ReadPlace::Cache(bytes, path) => match bytes.read(buffer) {
                Ok(0) if bytes.limit() > 0 && !buffer.is_empty() => {
                    Err(HubError::file("read", path, &io::ErrorKind::UnexpectedEof.into()).into())
                }
                read => read.map_err(|error| HubError::file("read", path, &error).into()),
            },
        }
    }
}

fn open(path: &Path, range: &Range<u64>) -> io::Result<io::Take<File>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    Ok(file.take(range.end - range.start))
}
