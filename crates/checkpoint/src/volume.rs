//! The shared folder, as the few operations that a checkpoint needs. Each is one step to whatever may fail or be killed,
//! so that a test can enumerate them all. Paths are relative to the job's folder, with `/` between names.

use std::io;
use std::path::PathBuf;

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name, replacement characters for what isn't UTF-8.
    pub name: String,
    /// Whether it is a folder (a link to one is not).
    pub is_dir: bool,
}

/// The operations on the shared folder. Errors are the operating system's, with its kinds.
pub trait Volume: Send + Sync {
    /// The path as a person would look it up; for messages.
    fn display(&self, path: &str) -> PathBuf;
    /// Makes one folder.
    ///
    /// # Errors
    /// `AlreadyExists` if there is anything of that name, `NotFound` if the parent is missing.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// What is in a folder, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or the device's.
    fn list(&self, path: &str) -> io::Result<Vec<Entry>>;
    /// Makes a file and opens it for writing.
    ///
    /// # Errors
    /// `AlreadyExists` if there is anything of that name, `NotFound` if the parent is missing.
    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>>;
    /// Opens a file for reading. What is open stays readable after a rename, and on local file systems after a removal.
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
    /// Makes the entries of a folder durable (not what is in them).
    ///
    /// # Errors
    /// The device's: what is durable is then unknown.
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
    /// The device's: the content must then be taken for lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file open for reading.
pub trait FileReader: Send + Sync {
    /// Its size, bytes.
    ///
    /// # Errors
    /// The device's.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset` (bytes) on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the buffer does, or the device's.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Removes a folder and all in it, entry by entry. Nothing there is fine.
pub(crate) fn remove_tree(volume: &dyn Volume, path: &str) -> io::Result<()> {
    let entries = match volume.list(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in entries {
        let inner = format!("{path}/{}", entry.name);
        match entry.is_dir {
            true => remove_tree(volume, &inner)?,
            false => gone(volume.remove_file(&inner))?,
        }
    }
    gone(volume.remove_dir(path))
}

/// Makes a folder that nobody else would make: if it is there, NFS has sent the call twice.
pub(crate) fn make_own_dir(volume: &dyn Volume, path: &str) -> io::Result<()> {
    match volume.make_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Moves a folder to where nothing is: if it is there already and here no more, NFS has sent the call twice.
pub(crate) fn move_dir(volume: &dyn Volume, from: &str, to: &str) -> io::Result<()> {
    match volume.rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && volume.list(to).is_ok() => Ok(()),
        moved => moved,
    }
}

/// Makes a folder unless it is there, durably.
pub(crate) fn ensure_dir(volume: &dyn Volume, path: &str) -> io::Result<()> {
    make_own_dir(volume, path)?;
    // also when it was there: its maker may have died before this
    volume.sync_dir(parent(path))
}

/// The folder that `path` is in; the job's own is `""`.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Takes "not there" for "removed": two may clear the same folder.
pub(crate) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
