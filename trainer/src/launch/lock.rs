//! One run holds a job's folder: a lock of the operating system, which goes with its process however that ends.

use std::fs::{File, TryLockError};
use std::io::Write;

use super::LaunchError;
use crate::folder::JobFolder;

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder.
    ///
    /// # Errors
    /// `Held` by another run; or the volume's.
    pub fn take(folder: &JobFolder) -> Result<Self, LaunchError> {
        let path = folder.lock();
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(LaunchError::storage("open the lock", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LaunchError::Held { folder: folder.root().to_owned(), pid: folder.holder() });
            }
            Err(TryLockError::Error(source)) => return Err(LaunchError::storage("lock", &path)(source)),
        }
        // For the sentence that a second run gets, and it marks the folder as a job's: so it is never empty in between.
        // The lock itself is the operating system's.
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
    fn a_second_run_is_told_who_holds_the_folder() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(workspace.path(), None).unwrap();
        let first = Lock::take(&folder).unwrap();
        let refused = Lock::take(&folder).unwrap_err();
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        assert_eq!(refused.exit_code().code(), 1);
        drop(first);
        std::fs::write(folder.lock(), "4294967295\n").unwrap();
        Lock::take(&folder).unwrap();
        assert_eq!(std::fs::read_to_string(folder.lock()).unwrap(), format!("{}\n", std::process::id()));
    }
}
