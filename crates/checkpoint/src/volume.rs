//! The shared folder, as the few operations that a checkpoint needs. Each is atomic with respect to failures and
//! crashes, so that tests can enumerate them. Paths are relative to the job's folder, with `/` between names.

use std::io;
use std::path::PathBuf;

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Name, with replacement characters for invalid UTF-8.
    pub name: String,
    /// Whether it is a folder (a link to one is not).
    pub is_dir: bool,
}

/// The operations on the shared folder. Errors are the operating system's, with its kinds.
pub trait Volume: Send + Sync {
    /// Full path, for messages.
    fn display(&self, path: &str) -> PathBuf;
    /// Creates one folder.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists, `NotFound` if the parent is missing.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Lists the entries of a folder, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or the device's.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;
    /// Creates a file and opens it for writing.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists, `NotFound` if the parent is missing.
    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>>;
    /// Opens a file for reading. It stays readable after a rename, and on local file systems after a removal.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, or the device's.
    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>>;
    /// Moves a file or folder, atomically. A file replaces a file, a folder an empty folder, and nothing else.
    ///
    /// # Errors
    /// `NotFound`, `DirectoryNotEmpty`, `AlreadyExists`, `NotADirectory`, or the device's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, or the device's.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes an empty folder.
    ///
    /// # Errors
    /// `NotFound`, `DirectoryNotEmpty`, or the device's.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Makes the entries of a folder durable, but not their content.
    ///
    /// # Errors
    /// The device's: it is then unknown which entries are durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
}

/// A file being written, front to back.
pub trait FileWriter: Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// The device's; how much was written is then unknown.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content durable.
    ///
    /// # Errors
    /// The device's: the content must then be considered lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file open for reading.
pub trait FileReader: Send + Sync {
    /// Size, bytes.
    ///
    /// # Errors
    /// The device's.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset` (bytes).
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the buffer does, or the device's.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Removes a folder and its entries, one by one; a missing folder is not an error.
pub(crate) fn remove_tree(volume: &dyn Volume, path: &str) -> io::Result<()> {
    let entries = match volume.list(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in entries {
        let inner = format!("{path}/{}", entry.name);
        match entry.is_dir {
            true => remove_tree(volume, &inner)?,
            false => ignore_not_found(volume.remove_file(&inner))?,
        }
    }
    ignore_not_found(volume.remove_dir(path))
}

/// Creates a folder that no other process creates: `AlreadyExists` means that NFS retried the call.
pub(crate) fn make_dir_idempotent(volume: &dyn Volume, path: &str) -> io::Result<()> {
    match volume.make_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Renames a folder to a path that does not exist: if `from` is missing and `to` exists, NFS retried the call.
pub(crate) fn rename_idempotent(volume: &dyn Volume, from: &str, to: &str) -> io::Result<()> {
    match volume.rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && volume.list(to).is_ok() => Ok(()),
        moved => moved,
    }
}

/// Creates a folder if it does not exist, and syncs its parent.
pub(crate) fn ensure_dir(volume: &dyn Volume, path: &str) -> io::Result<()> {
    make_dir_idempotent(volume, path)?;
    // also if it existed: its creator may have crashed before the sync
    volume.sync_dir(parent(path))
}

/// Parent folder of `path`; the job's folder is `""`.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Treats `NotFound` as removed: two groups may remove the same folder.
pub(crate) fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
