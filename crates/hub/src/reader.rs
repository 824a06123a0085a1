//! Readers of files, from the cache or from the hub.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::HubError;
use crate::file::CommitFile;
use crate::hub::Hub;
use crate::remote::Remote;

/// A reader that selects the cache or the hub at its first read.
pub(crate) struct FileReader {
    hub: Arc<Hub>,
    source: CommitFile,
    range: Range<u64>,
    place: Place,
}

enum Place {
    Unknown,
    Cache(io::Take<File>, PathBuf),
    // boxed, since it is much larger
    Hub(Box<Remote>),
}

impl FileReader {
    pub(crate) fn new(hub: Arc<Hub>, source: CommitFile, range: Range<u64>) -> FileReader {
        FileReader { hub, source, range, place: Place::Unknown }
    }

    /// The file or the host that the bytes come from.
    pub(crate) fn place(&self) -> String {
        match &self.place {
            Place::Unknown => String::new(),
            Place::Cache(_, path) => path.display().to_string(),
            Place::Hub(remote) => remote.host().to_owned(),
        }
    }

    fn locate(&self) -> Result<Place, HubError> {
        let CommitFile { repo, commit, file } = &self.source;
        if let Some(path) = self.hub.cache.as_ref().and_then(|cache| cache.file(repo, commit, file)) {
            let bytes = open(&path, &self.range).map_err(|error| HubError::file("read", &path, &error))?;
            return Ok(Place::Cache(bytes, path));
        }
        if self.hub.is_offline {
            return Err(self.hub.not_cached(self.source.to_string()));
        }
        Ok(Place::Hub(Box::new(Remote::new(self.hub.clone(), self.source.clone(), self.range.clone()))))
    }
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // an empty range needs no request
        if self.range.is_empty() {
            return Ok(0);
        }
        if let Place::Unknown = self.place {
            self.place = self.locate()?;
        }
        match &mut self.place {
            Place::Unknown => Ok(0),
            Place::Hub(remote) => remote.read(buffer),
            Place::Cache(bytes, path) => match bytes.read(buffer) {
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
