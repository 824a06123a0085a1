#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod abandoned;
mod name;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

pub use abandoned::remove_abandoned;
pub use name::{is_cache_key, key, random_hex, target_of_temporary_file, temporary_name};

/// Reads a file. Returns `None` if the file does not exist.
///
/// # Errors
/// Returns an error if the file exists and can't be read.
pub fn read_if_exists(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// A file that is written under a temporary name. [`AtomicFile::commit`] renames the file to its target. Dropping the
/// value before the commit removes the file.
#[derive(Debug)]
pub struct AtomicFile {
    /// The open file, or `None` after the commit.
    file: Option<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file beside `target`.
    ///
    /// # Errors
    /// Returns an error if the folder can't be written.
    pub fn create(target: &Path) -> io::Result<AtomicFile> {
        AtomicFile::create_in(target.parent().unwrap_or(Path::new("")), target)
    }

    /// Creates the temporary file in `folder`, which must be on the file system of `target`.
    ///
    /// # Errors
    /// Returns an error if `folder` can't be written.
    pub fn create_in(folder: &Path, target: &Path) -> io::Result<AtomicFile> {
        let temporary = folder.join(temporary_name(&target.file_name().unwrap_or_default().to_string_lossy()));
        let file = OpenOptions::new().append(true).create_new(true).open(&temporary)?;
        Ok(AtomicFile { file: Some(file), temporary, target: target.to_owned() })
    }

    /// Syncs the file, renames it to its target, and syncs the target's folder. The rename replaces an existing file.
    /// Returns the file, open for appending.
    ///
    /// # Errors
    /// Returns an error if the file or the folder can't be written. After an error, the target has its old content,
    /// unless the sync of the folder failed.
    pub fn commit(mut self) -> io::Result<File> {
        let file = self.open_file()?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        let file = self.file.take().ok_or(ErrorKind::NotFound)?;
        sync_dir(self.target.parent().unwrap_or(Path::new("")))?;
        Ok(file)
    }

    /// Locks the file until its handle is closed, so that [`remove_abandoned`] in another process does not remove it.
    /// Has no effect on a file system without locks.
    pub fn try_lock(&self) {
        if let Some(file) = &self.file {
            let _ = file.try_lock();
        }
    }

    fn open_file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open_file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open_file()?.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Atomically replaces the content of the file `path`. Creates the file if it does not exist.
///
/// # Errors
/// Returns the errors of [`AtomicFile::create`] and [`AtomicFile::commit`].
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit().map(drop)
}

/// Creates a folder and its missing parents, and makes their entries durable. Also syncs the entry of an existing
/// folder, because the creator of that folder may have crashed before its sync.
///
/// # Errors
/// Returns an error if a folder can't be created, or if the entry of a new folder can't be made durable.
pub fn create_durable_dir(folder: &Path) -> io::Result<()> {
    let parent = folder.parent().unwrap_or(Path::new(""));
    match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound && !parent.as_os_str().is_empty() => {
            create_durable_dir(parent)?;
            match fs::create_dir(folder) {
                // another process has created the folder
                Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
                created => created?,
            }
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {
            // errors are ignored: the user may have no access to the parent, and the entry of an old folder is durable
            let _ = sync_dir(parent);
            return Ok(());
        }
        created => created?,
    }
    sync_dir(parent)
}

/// Makes the entries of a folder durable, but not the content of its files. The path `""` means the current folder.
///
/// # Errors
/// Returns the error of the device. After an error, it is unknown which entries are durable.
pub fn sync_dir(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // some network file systems sync folders by themselves and do not support the call
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_content_stays_until_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_atomically(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        // the files that a killed process would leave
        let left: Vec<_> = names(folder.path()).into_iter().filter(|name| name != "state.json").collect();
        assert_eq!(left.iter().filter_map(|name| target_of_temporary_file(name)).collect::<Vec<_>>(), ["state.json"]);
        let mut committed = file.commit().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["state.json".to_owned()]));
        committed.write_all(b"er").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }

    #[test]
    fn a_file_that_is_not_committed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        AtomicFile::create(&path).unwrap().write_all(b"half").unwrap();
        assert_eq!(names(folder.path()), [""; 0]);
        // the rename fails if the target is a folder
        fs::create_dir(&path).unwrap();
        write_atomically(&path, b"new").unwrap_err();
        assert_eq!(names(folder.path()), ["state.json"]);
        assert_eq!(write_atomically(&folder.path().join("none/x"), b"").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_folder_is_created_with_those_above_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b/c");
        create_durable_dir(&folder).unwrap();
        create_durable_dir(&folder).unwrap();
        assert!(folder.is_dir());
        fs::write(root.path().join("file"), "").unwrap();
        create_durable_dir(&root.path().join("file")).unwrap_err();
        create_durable_dir(&root.path().join("file/in it")).unwrap_err();
    }

    #[test]
    fn writers_of_one_file_do_not_share_a_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("x"), folder.path().join("aside"));
        fs::create_dir(&aside).unwrap();
        let mut files: Vec<AtomicFile> = (0..9).map(|_| AtomicFile::create_in(&aside, &path).unwrap()).collect();
        for (number, file) in files.iter_mut().enumerate() {
            write!(file, "{number}").unwrap();
        }
        assert_eq!((names(&aside).len(), path.exists()), (9, false));
        // after a rename of the folder, its remaining writers can't replace the file
        files.remove(4).commit().unwrap();
        fs::rename(&aside, folder.path().join("fenced")).unwrap();
        assert_eq!(files.pop().unwrap().commit().unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read(&path).unwrap(), b"4");
    }
}
