//! The shared folder, reduced to the operations that a checkpoint needs. Each operation is atomic with respect to
//! failures and crashes, so that tests can enumerate the operations. Paths are relative to the job's folder, with `/`
//! between names.

mod direct_io;
mod file_system;
mod operations;
mod write_queue;

use std::io;
use std::path::PathBuf;

pub use file_system::FileSystemVolume;
pub(crate) use operations::{
    ensure_dir, ignore_not_found, make_dir_idempotent, read_file, remove_tree, rename_idempotent, sync_dir,
    target_exists, volume_io,
};

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, with replacement characters for invalid UTF-8.
    pub name: String,
    /// Whether the entry is a folder (a link to a folder is not).
    pub is_dir: bool,
}

/// The operations on the shared folder. Errors have the operating system's kinds.
pub trait Volume: Send + Sync {
    /// The full path, for messages.
    fn display(&self, path: &str) -> PathBuf;
    /// Creates one folder.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists, `NotFound` if the parent is missing.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Like [`Volume::make_dir`], for a folder that only its owner can list and enter.
    ///
    /// # Errors
    /// Like [`Volume::make_dir`].
    fn make_private_dir(&self, path: &str) -> io::Result<()>;
    /// Lists the entries of a folder, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or the device's error.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;
    /// Creates a file and opens it for writing.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists, `NotFound` if the parent is missing.
    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>>;
    /// Opens a file for reading. The file stays readable after a rename, and on local file systems after a removal.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, or the device's error.
    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>>;
    /// Moves a file or folder atomically. A file may replace only a file, and a folder only an empty folder.
    ///
    /// # Errors
    /// `NotFound`, `DirectoryNotEmpty`, `AlreadyExists`, `NotADirectory`, or the device's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, or the device's error.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes an empty folder.
    ///
    /// # Errors
    /// `NotFound`, `DirectoryNotEmpty`, or the device's error.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Makes the entries of a folder durable, but not the content of its files.
    ///
    /// # Errors
    /// The device's error. It is then unknown which entries are durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Bytes that can still be written below a folder; `None` if the volume does not report them.
    fn available_bytes(&self, _path: &str) -> Option<u64> {
        None
    }
}

/// A file that is being written from front to back.
pub trait FileWriter: Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// The device's error. It is then unknown how many bytes were written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content durable.
    ///
    /// # Errors
    /// The device's error. The content must then be considered lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file open for reading.
pub trait FileReader: Send + Sync {
    /// The size in bytes.
    ///
    /// # Errors
    /// The device's error.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset` (bytes).
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before `buffer` is full, or the device's error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}
