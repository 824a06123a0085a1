//! Memory maps of files that never change.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::DataError;

/// Maps a file of `expected` bytes.
///
/// # Errors
/// Fails if the file can't be mapped or has another size.
#[allow(unsafe_code)]
pub(crate) fn map_file(path: &Path, expected: u64) -> Result<Mmap, DataError> {
    let file = File::open(path).map_err(DataError::io("open", path))?;
    // SAFETY: the file must not shrink or change while it is mapped. Cache files are renamed into place once complete
    // and are never written to afterwards. Replacing a file leaves the mapped inode as it is.
    let map = unsafe { Mmap::map(&file) }.map_err(DataError::io("map", path))?;
    match map.len() as u64 {
        found if found == expected => Ok(map),
        found => Err(DataError::WrongSize { path: path.into(), expected, found }),
    }
}
