//! Sources list the files of a corpus, and read their bytes. All other modules of the crate access corpus files through
//! [`Source`]. The scheme of a pattern selects the source. A pattern without a scheme matches files of the volume.

mod counted;
mod hub;
mod local;
mod objects;
mod remote_files;
mod waits;

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::DataConfig;
use crate::error::DataError;
pub(crate) use counted::CountedSource;
use hub::HubFiles;
pub use hub::hub_client;
pub(crate) use local::LocalFiles;
use objects::ObjectFiles;
pub(crate) use remote_files::RemoteFiles;

/// A store of corpus files: the volume, the Hugging Face hub or an object store.
pub(crate) trait Source: Debug + Send + Sync {
    /// Returns the files that `pattern` matches, in any order.
    ///
    /// # Errors
    /// Fails if the pattern is invalid or matches no file, or if the source can't be listed.
    fn list(&self, pattern: &str) -> Result<SourceListing, DataError>;

    /// Whether the file still has the contents that it had when it was listed.
    ///
    /// # Errors
    /// Fails if the source has no such file or can't be read.
    fn is_unchanged(&self, file: &SourceFile) -> Result<bool, DataError>;

    /// Opens the range `bytes` of a file for reading. The reader ends earlier if the file is shorter.
    ///
    /// # Errors
    /// Fails if the source has no such file or can't be read. The reader fails if the source detects that the bytes
    /// differ from the bytes of the listed file.
    fn open(&self, file: &SourceFile, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>>;

    /// Whether the source compares the bytes of a file with the file's digest. The comparison needs all bytes, so the
    /// file is read from its beginning, even if only a later part is needed.
    fn verifies_whole_files(&self) -> bool {
        false
    }
}

/// The matches of a pattern.
#[derive(Default)]
pub(crate) struct SourceListing {
    pub(crate) files: Vec<SourceFile>,
    /// The names of the matched folders, in a source that has folders.
    pub(crate) folders: Vec<String>,
}

/// A file of a source. The record of a job's remote files stores such files.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(crate) struct SourceFile {
    /// The identity of the file: two matches with the same path are the same file. The files of a corpus are ordered by
    /// path.
    pub(crate) path: PathBuf,
    /// The name in messages. Caches record the hash of the contents under this name and the stamp.
    pub(crate) name: String,
    /// The name that a pattern matched. It differs from `name` for a link, and for a remote file, whose `name` is a
    /// URI.
    pub(crate) matched: String,
    #[serde(flatten)]
    pub(crate) stamp: FileStamp,
    /// The digest that the source states for the contents, such as `sha256:...`. If there is none, the contents are
    /// hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

/// Attributes that change when a file gets other contents. A tool can set the size and the modification time of a file,
/// but not all of these attributes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileStamp {
    /// The size in bytes.
    pub(crate) size: u64,
    /// The time of the last modification, in nanoseconds since 1970.
    pub(crate) modified: u64,
    /// The time of the last change of the file or of its metadata, in nanoseconds since 1970; 0 in caches of earlier
    /// versions.
    #[serde(default)]
    pub(crate) changed: u64,
    /// The number of the file in its file system.
    #[serde(default)]
    pub(crate) inode: u64,
}

/// The sources of a job.
pub(crate) struct Sources<'a> {
    config: &'a DataConfig,
    remote_files: RemoteFiles,
    local: Option<Arc<LocalFiles>>,
    hub: Option<Arc<HubFiles>>,
    objects: Option<Arc<ObjectFiles>>,
}

impl<'a> Sources<'a> {
    /// Returns the sources of a job. Each source is opened when a pattern needs it.
    ///
    /// # Errors
    /// Fails if the record of the job's remote files can't be read.
    pub(crate) fn of_job(config: &'a DataConfig) -> Result<Sources<'a>, DataError> {
        let remote_files = RemoteFiles::read(config.remote_files.as_deref())?;
        Ok(Sources { config, remote_files, local: None, hub: None, objects: None })
    }

    /// Returns the files that `pattern` matches, and their source. A pattern of a remote source is listed once per job.
    /// Later calls return the same files, so a moved branch does not affect a job that has begun.
    ///
    /// # Errors
    /// Fails if the scheme is unknown, or like [`Source::list`].
    pub(crate) fn list(&mut self, pattern: &str) -> Result<(Arc<dyn Source>, SourceListing), DataError> {
        let source: Arc<dyn Source> = match scheme(pattern) {
            None => {
                let local = opened(&mut self.local, || LocalFiles::of_job(self.config))?;
                let listing = local.list(pattern)?;
                return Ok((local, listing));
            }
            Some("hf") => opened(&mut self.hub, || HubFiles::of_job(self.config))?,
            Some("s3" | "gs" | "az") => opened(&mut self.objects, || ObjectFiles::of_job(self.config))?,
            Some(scheme) => {
                return Err(DataError::UnknownScheme { pattern: pattern.to_owned(), scheme: scheme.to_owned() });
            }
        };
        let files = match self.remote_files.of(pattern) {
            Some(files) => files.to_vec(),
            None => {
                let files = source.list(pattern)?.files;
                self.remote_files.add(pattern, &files);
                files
            }
        };
        Ok((source, SourceListing { files, folders: Vec::new() }))
    }

    /// Returns the record of the job's remote files, including the newly listed files.
    pub(crate) fn into_remote_files(self) -> RemoteFiles {
        self.remote_files
    }
}

/// Returns the source in `slot`, and opens the source if the slot is empty.
fn opened<S>(slot: &mut Option<Arc<S>>, open: impl FnOnce() -> Result<S, DataError>) -> Result<Arc<S>, DataError> {
    let source = match slot.take() {
        Some(source) => source,
        None => Arc::new(open()?),
    };
    Ok(Arc::clone(slot.insert(source)))
}

/// Returns the scheme of a pattern that is a URI, such as `hf`.
fn scheme(pattern: &str) -> Option<&str> {
    pattern.split_once("://").map(|(scheme, _)| scheme)
}
