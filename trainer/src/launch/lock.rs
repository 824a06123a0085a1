//! One run holds a job at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};

use super::folder::{Folder, LaunchError, storage};

/// Held until dropped, or until the process ends however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the job's lock, and leaves this process's id in it.
    ///
    /// # Errors
    /// If another run holds it, by its process id.
    pub fn take(folder: &Folder) -> Result<Lock, LaunchError> {
        let path = folder.lock();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(storage("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(LaunchError::Held { folder: folder.path().to_owned(), holder: holder.trim().to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(storage("lock", &path)(source)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(storage("write", &path))?;
        Ok(Lock { _file: file })
    }
}
