//! Implements [`Volume`] on a mounted file system.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use super::direct_io::DirectWriter;
use super::{DirEntry, FileReader, FileWriter, Volume};
use crate::error::{CheckpointError, io};
use crate::paths;

/// A job's folder on a mounted file system.
#[derive(Clone, Debug)]
pub struct FileSystemVolume {
    root: PathBuf,
    /// The path of the only checkpoint if [`FileSystemVolume::of_checkpoint`] created this value, otherwise `None`.
    alone: Option<String>,
}

impl FileSystemVolume {
    /// Returns the volume in `root`. This call does not access `root`.
    pub fn new(root: &Path) -> FileSystemVolume {
        FileSystemVolume { root: root.to_owned(), alone: None }
    }

    /// Returns a read-only volume whose only checkpoint is `folder`, as the checkpoint of `step`. The folder can have
    /// any path.
    pub(crate) fn of_checkpoint(folder: &Path, step: u64) -> FileSystemVolume {
        FileSystemVolume { root: folder.to_owned(), alone: Some(paths::checkpoint_path(step)) }
    }

    /// Returns the volume in `root`. Creates missing folders, and syncs them so that they survive a power loss.
    ///
    /// # Errors
    /// Returns an error if the folder can't be created.
    pub fn create(root: &Path) -> Result<FileSystemVolume, CheckpointError> {
        stagecoach_files::create_durable_dir(root).map_err(io("create", root))?;
        Ok(FileSystemVolume::new(root))
    }

    fn absolute(&self, path: &str) -> PathBuf {
        let inner = self.alone.as_ref().and_then(|alone| path.strip_prefix(alone.as_str()));
        self.root.join(inner.map_or(path, |inner| inner.trim_start_matches('/')))
    }
}

impl Volume for FileSystemVolume {
    fn display(&self, path: &str) -> PathBuf {
        self.absolute(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.absolute(path))
    }

    fn make_private_dir(&self, path: &str) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(self.absolute(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        if let Some(name) = self.alone.as_ref().and_then(|alone| alone.strip_prefix(path)?.strip_prefix('/')) {
            return Ok(vec![DirEntry { name: name.to_owned(), is_dir: true }]);
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.absolute(path))? {
            let entry = entry?;
            let is_dir = match entry.file_type() {
                // some file systems need another call for the type, and another process may have removed the entry;
                // callers would take `NotFound` for a missing folder
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file_type => file_type?.is_dir(),
            };
            entries.push(DirEntry { name: entry.file_name().to_string_lossy().into_owned(), is_dir });
        }
        entries.sort();
        Ok(entries)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.absolute(path))?;
        Ok(Box::new(DirectWriter::new(file)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let file = File::open(self.absolute(path))?;
        if file.metadata()?.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(Box::new(file)) }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.absolute(from), self.absolute(to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.absolute(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.absolute(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        stagecoach_files::sync_dir(&self.absolute(path))
    }

    fn available_bytes(&self, path: &str) -> Option<u64> {
        let found = rustix::fs::statvfs(self.absolute(path)).ok()?;
        // some file systems over object stores report a size of 0
        (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl FileReader for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}
