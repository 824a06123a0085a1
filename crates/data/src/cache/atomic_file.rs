//! Atomic creation of files: a file has all of its contents or doesn't exist.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::DataError;

/// Suffix of temporary names; such a file belongs to a running process or to one that crashed.
pub(super) const UNFINISHED_SUFFIX: &str = ".unfinished";

/// Writes to a temporary file and renames it to `path` once its bytes are on disk.
pub(super) fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    // Random, not the process id: processes in different pods share the volume, and each is number 1 in its own.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{:016x}{UNFINISHED_SUFFIX}", RandomState::new().hash_one(path)));
    let temporary = Path::new(&temporary);
    let written = File::create_new(temporary).map_err(DataError::io("create", temporary)).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write(&mut file)?;
        let file =
            file.into_inner().map_err(io::IntoInnerError::into_error).map_err(DataError::io("write", temporary))?;
        file.sync_all().map_err(DataError::io("write", temporary))?;
        fs::rename(temporary, path).map_err(DataError::io("rename to", path))
    });
    if written.is_err() {
        fs::remove_file(temporary).ok();
    }
    written
}

/// [`write_atomically`] for bytes in memory.
pub(super) fn write_bytes_atomically(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    write_atomically(path, |file| file.write_all(bytes).map_err(DataError::io("write", path)))
}

/// Makes the renames in `folder` survive a power failure.
pub(super) fn sync_dir(folder: &Path) -> Result<(), DataError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(DataError::io("sync", folder))
}
