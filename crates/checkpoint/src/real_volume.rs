//! A [`Volume`] of real files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::direct::DirectWriter;
use crate::error::{CheckpointError, io};
use crate::volume::{Entry, FileReader, FileWriter, Volume};

/// A job's folder on a mounted file system.
#[derive(Clone, Debug)]
pub struct RealVolume {
    root: PathBuf,
}

impl RealVolume {
    /// The volume in `root`, which is only looked at when it is used.
    pub fn new(root: &Path) -> RealVolume {
        RealVolume { root: root.to_owned() }
    }

    /// The same, after making the folder and its parents where they are missing.
    ///
    /// # Errors
    /// If the folder can't be made.
    pub fn create(root: &Path) -> Result<RealVolume, CheckpointError> {
        fs::create_dir_all(root).map_err(io("create", root))?;
        Ok(RealVolume::new(root))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

impl Volume for RealVolume {
    fn display(&self, path: &str) -> PathBuf {
        self.at(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.at(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.at(path))?;
        Ok(Box::new(DirectWriter::new(file)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let file = File::open(self.at(path))?;
        if file.metadata()?.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(Box::new(file)) }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.at(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        match File::open(self.at(path))?.sync_all() {
            // some network file systems sync folders by themselves and know no call for it
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            synced => synced,
        }
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
