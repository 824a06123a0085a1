//! Defines the operations that checkpoints need on the shared folder of a job. The operations are small, so that a test
//! can inject a failure or a crash at each of them. Paths are relative to the job's folder, with `/` between names.

mod direct_io;
mod file_system;
mod operations;
mod write_queue;

use std::io;
use std::path::PathBuf;

pub use file_system::FileSystemVolume;
pub(crate) use operations::{
    ensure_dir, ignore_not_found, io_error_on, list_or_none, make_dir_idempotent, read_file, remove_tree,
    rename_idempotent, sync_dir, target_exists,
};

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, with replacement characters for invalid UTF-8.
    pub name: String,
    /// Whether the entry is a folder. A link to a folder is not a folder.
    pub is_dir: bool,
}

/// The operations on the shared folder. An error has the [`io::ErrorKind`] of the operating system's error.
pub trait Volume: Send + Sync {
    /// Returns the full path, for messages.
    fn display(&self, path: &str) -> PathBuf;
    /// Creates one folder.
    ///
    /// # Errors
    /// Returns `AlreadyExists` if the name exists, `NotFound` if the parent is missing, or the device's error.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Creates one folder that only its owner can list and enter.
    ///
    /// # Errors
    /// Returns the errors of [`Volume::make_dir`].
    fn make_private_dir(&self, path: &str) -> io::Result<()>;
    /// Lists the entries of a folder, sorted by name.
    ///
    /// # Errors
    /// Returns `NotFound`, `NotADirectory`, or the device's error.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;
    /// Creates a file and opens it for writing.
    ///
    /// # Errors
    /// Returns `AlreadyExists` if the name exists, `NotFound` if the parent is missing, or the device's error.
    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>>;
    /// Opens a file for reading. The file stays readable after a rename, and on local file systems after a removal.
    ///
    /// # Errors
    /// Returns `NotFound`, `IsADirectory`, or the device's error.
    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>>;
    /// Moves a file or folder atomically. A file may replace only a file, and a folder only an empty folder.
    ///
    /// # Errors
    /// Returns `NotFound`, `DirectoryNotEmpty`, `AlreadyExists`, `NotADirectory`, or the device's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// Returns `NotFound`, or the device's error.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes an empty folder.
    ///
    /// # Errors
    /// Returns `NotFound`, `DirectoryNotEmpty`, or the device's error.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Makes the entries of a folder durable, but not the content of its files.
    ///
    /// # Errors
    /// Returns the device's error. After an error, it is unknown which entries are durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Returns the number of bytes that can be written below a folder, or `None` if the volume does not report this
    /// number.
    fn available_bytes(&self, _path: &str) -> Option<u64> {
        None
    }
}

/// A file that is written from front to back.
pub trait FileWriter: Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// Returns the device's error. After an error, it is unknown how many bytes were written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content durable.
    ///
    /// # Errors
    /// Returns the device's error. After an error, the content must be considered lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is open for reading.
pub trait FileReader: Send + Sync {
    /// Returns the size in bytes.
    ///
    /// # Errors
    /// Returns the device's error.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buffer` with the file's bytes from `offset` on.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the file ends before `buffer` is full, or the device's error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}
