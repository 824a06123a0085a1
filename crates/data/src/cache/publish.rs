//! Files that appear whole or not at all.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::DataError;

/// How temporary names end; what bears one belongs to a run that is under way or was killed.
pub(super) const TEMPORARY: &str = ".unfinished";

/// Writes a file aside and renames it to `path` once its bytes are on disk.
pub(super) fn publish(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    // Random, not the process id: processes in different pods share the volume, and each is number 1 in its own.
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{:016x}{TEMPORARY}", RandomState::new().hash_one(path)));
    let aside = Path::new(&aside);
    let written = File::create_new(aside).map_err(DataError::io("create", aside)).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write(&mut file)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error).map_err(DataError::io("write", aside))?;
        file.sync_all().map_err(DataError::io("write", aside))?;
        fs::rename(aside, path).map_err(DataError::io("rename to", path))
    });
    if written.is_err() {
        fs::remove_file(aside).ok();
    }
    written
}

/// [`publish`] for bytes at hand.
pub(super) fn publish_bytes(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    publish(path, |file| file.write_all(bytes).map_err(DataError::io("write", path)))
}

/// Makes the renames in `folder` outlast a power failure.
pub(super) fn sync(folder: &Path) -> Result<(), DataError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(DataError::io("sync", folder))
}
