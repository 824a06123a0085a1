//! Removes the temporary files that killed processes left.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::name::target_of_temporary_file;

/// The age from which a temporary file counts as abandoned, on a file system without locks.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time between the creation of a temporary file and its lock.
const LOCKED_WITHIN: Duration = Duration::from_secs(60);

/// Removes the temporary files of ended processes from `folder`. A file stays if it is locked
/// ([`AtomicFile::try_lock`](crate::AtomicFile::try_lock)) or was written within the last minute. On a file system
/// without locks, a file stays for a day. The function ignores errors: a later call removes the files that remain.
pub fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_temporary = entry.file_name().to_str().is_some_and(|name| target_of_temporary_file(name).is_some());
        if is_temporary && is_file_abandoned(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_file_abandoned(path: &Path) -> bool {
    // NFS can lock only a file that is open for writing
    let Ok(file) = File::options().read(true).write(true).open(path) else { return false };
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| is_abandoned(age, || file.try_lock()))
}

/// Whether the process that created a temporary file has ended. The operating system releases the lock of a killed
/// process.
fn is_abandoned(age: Duration, try_lock: impl FnOnce() -> Result<(), TryLockError>) -> bool {
    // the writer of a young file may be about to lock it, and a lock of this process, however short, would prevent that
    if age <= LOCKED_WITHIN {
        return false;
    }
    match try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => age > ABANDONED_AFTER,
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::AtomicFile;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_young_file_is_not_locked() {
        let mut locks = 0;
        let mut is_abandoned_at = |age| {
            is_abandoned(age, || {
                locks += 1;
                Ok(())
            })
        };
        assert!(!is_abandoned_at(LOCKED_WITHIN));
        assert!(is_abandoned_at(LOCKED_WITHIN + SECOND));
        assert_eq!(locks, 1, "only the old file");
    }

    #[test]
    fn without_locks_a_file_stays_for_a_day() {
        let without_locks = || Err(TryLockError::Error(ErrorKind::Unsupported.into()));
        assert!(!is_abandoned(ABANDONED_AFTER, without_locks));
        assert!(is_abandoned(ABANDONED_AFTER + SECOND, without_locks));
    }

    #[test]
    fn files_of_running_processes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let age = |path: &Path| {
            let file = File::options().append(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - (LOCKED_WITHIN + LOCKED_WITHIN)).unwrap();
        };
        let create = |target: &str| AtomicFile::create(&folder.path().join(target)).unwrap();
        let [young, locked, abandoned] = ["young", "locked", "abandoned"].map(create);
        locked.try_lock();
        age(&locked.temporary);
        age(&abandoned.temporary);
        let other = folder.path().join("state.json");
        fs::write(&other, "").unwrap();
        age(&other);
        remove_abandoned(folder.path());
        assert!(young.temporary.exists() && locked.temporary.exists() && other.exists());
        assert!(!abandoned.temporary.exists());
        locked.commit().unwrap();
    }
}
