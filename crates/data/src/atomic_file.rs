//! Functions that replace a file atomically and fail with a [`DataError`].

use std::io::{self, BufWriter};
use std::path::Path;

use stagecoach_files::AtomicFile;

use crate::error::DataError;

/// Writes a file through `write`. The new file replaces `path` after its bytes are on disk.
pub(crate) fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = AtomicFile::create(path).map_err(DataError::io("create", path))?;
    // another process that prepares the same corpus removes abandoned files, and a locked file is not abandoned
    file.try_lock();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    write(&mut file)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error).map_err(DataError::io("write", path))?;
    file.commit().map(drop).map_err(DataError::io("write", path))
}

/// Replaces the file at `path` atomically with `bytes`.
pub(crate) fn write_bytes_atomically(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    stagecoach_files::write_atomically(path, bytes).map_err(DataError::io("write", path))
}
