//! A lock of the operating system that prevents a second run of a job on this machine. The operating system releases
//! the lock when the process ends, even if a signal kills the process.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::time::Duration;

use super::LaunchError;
use crate::folder::JobFolder;

/// An upper bound of the time for which a process holds the lock only to check it. A starting run waits for this time
/// before it tries again.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The number of times that a starting run tries again to acquire the lock, because a process that only checks the lock
/// may hold the lock for a moment.
const MAX_RETRIES: u32 = 3;

/// Whether a run holds the lock of a job's folder. The check writes nothing.
///
/// # Errors
/// Returns an error if the volume fails.
pub(super) fn is_locked(folder: &JobFolder) -> Result<bool, LaunchError> {
    let path = folder.lock();
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(LaunchError::storage("open the lock", &path))?,
    };
    // A successful check holds the lock until this function returns. A run that starts in the meantime tries again.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(LaunchError::storage("look at the lock", &path)(source)),
    }
}

/// The lock of a job's folder, held until this value is dropped.
#[derive(Debug)]
pub struct JobLock {
    _file: File,
}

impl JobLock {
    /// Locks the folder.
    ///
    /// # Errors
    /// Returns `Locked` if another run holds the lock, or another error if the volume fails.
    pub fn acquire(folder: &JobFolder) -> Result<Self, LaunchError> {
        let path = folder.lock();
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(LaunchError::storage("open the lock", &path))?;
        let mut locked = file.try_lock();
        for _ in 0..MAX_RETRIES {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(RETRY_DELAY);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LaunchError::Locked { folder: folder.root().to_owned(), pid: folder.lock_holder() });
            }
            Err(TryLockError::Error(source)) => return Err(LaunchError::storage("lock", &path)(source)),
        }
        // The process id appears in the error message above, and marks the folder as a job's folder. The new content
        // overwrites the old content before the file is truncated, so the file is never empty.
        let pid = format!("{}\n", std::process::id());
        let written = file.write_all(pid.as_bytes()).and_then(|()| file.set_len(pid.len() as u64));
        written.map_err(LaunchError::storage("write", &path))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_is_refused_with_the_first_ones_process_id() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(workspace.path(), None).unwrap();
        assert!(!is_locked(&folder).unwrap());
        let first = JobLock::acquire(&folder).unwrap();
        assert!(is_locked(&folder).unwrap());
        let refused = JobLock::acquire(&folder).unwrap_err();
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        assert_eq!(refused.exit_code().code(), 1);
        drop(first);
        std::fs::write(folder.lock(), "4294967295\n").unwrap();
        JobLock::acquire(&folder).unwrap();
        assert_eq!(std::fs::read_to_string(folder.lock()).unwrap(), format!("{}\n", std::process::id()));
    }
}
