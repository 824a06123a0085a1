//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::{CheckpointError, io};

/// Writes `bytes` to `path` and makes them durable. Not atomic: for files in a folder that is published later.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = File::create(path).map_err(io("create", path))?;
    file.write_all(bytes).map_err(io("write", path))?;
    file.sync_all().map_err(io("sync", path))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(io("sync", path))
}

/// Writes `path` aside and renames it into place: readers see the old content or the new, also after a crash.
///
/// # Errors
/// If the folder can't be written.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let aside = path.with_file_name(name);
    let written = write_durably(&aside, bytes).and_then(|()| fs::rename(&aside, path).map_err(io("publish", path)));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}
