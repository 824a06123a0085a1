//! One run holds a job's folder: a lock of the operating system, which goes with its process however that ends.

use std::fs::{self, File, TryLockError};
use std::io::Write;

use super::{JobFolder, LaunchError};

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
                let pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                return Err(LaunchError::Held { folder: folder.root().to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(LaunchError::storage("lock", &path)(source)),
        }
        // For the sentence that a second run gets; the lock itself is the operating system's.
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
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
        let folder = JobFolder::create(workspace.path(), "mine").unwrap();
        let first = Lock::take(&folder).unwrap();
        let refused = Lock::take(&folder).unwrap_err();
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        assert_eq!(refused.exit_code().code(), 1);
        drop(first);
        Lock::take(&folder).unwrap();
    }
}
