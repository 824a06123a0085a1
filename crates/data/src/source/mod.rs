//! Sources: where the files of a corpus are, and how their bytes are read. The rest of the crate knows corpus files
//! only through [`Source`].

mod local;

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::DataError;
pub(crate) use local::LocalFiles;

/// A place that holds corpus files.
pub(crate) trait Source: Debug + Send + Sync {
    /// The files that `pattern` matches, in any order.
    ///
    /// # Errors
    /// Fails if the pattern is invalid or matches no file, or if the source can't be listed.
    fn list(&self, pattern: &str) -> Result<Listing, DataError>;

    /// The present stamp of the file at `path`.
    ///
    /// # Errors
    /// Fails if the source has no such file or can't be read.
    fn stamp(&self, path: &Path) -> Result<FileStamp, DataError>;

    /// Opens a file for reading. The reader ends after these bytes, or with the file if the file is shorter.
    ///
    /// # Errors
    /// Fails if the source has no such file or can't be read.
    fn open(&self, path: &Path, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>>;
}

/// The matches of a pattern.
#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) files: Vec<SourceFile>,
    /// Names of the matched folders, in a source that has folders.
    pub(crate) folders: Vec<String>,
}

/// A file of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// The identity of the file: two matches with the same path are the same file. A corpus is in the order of the paths.
    pub(crate) path: PathBuf,
    /// The name for people. Together with the stamp, it is the key under which caches record the hash of the contents.
    pub(crate) name: String,
    /// The name that a pattern matched. It differs from `name` for a link.
    pub(crate) matched: String,
    pub(crate) stamp: FileStamp,
}

/// Attributes that change when a file gets other contents. Tools can set the size and the modification time as they
/// like, but not all of these attributes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileStamp {
    /// Bytes.
    pub(crate) size: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub(crate) modified: u64,
    /// Time of the last change of the file or of its metadata, in nanoseconds since 1970; 0 in caches of earlier
    /// versions.
    #[serde(default)]
    pub(crate) changed: u64,
    /// The number of the file in its file system.
    #[serde(default)]
    pub(crate) inode: u64,
}
