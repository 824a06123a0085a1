//! Defines operations that make several calls on a [`Volume`], or that tolerate the error of a call that NFS repeats
//! after its success.

use std::io::{self, ErrorKind};

use super::{DirEntry, Volume};
use crate::error::CheckpointError;

/// Returns a function for `map_err` that adds an operation and its path on a volume to an I/O error.
pub(crate) fn io_error_on(
    volume: &dyn Volume,
    operation: &'static str,
    path: &str,
) -> impl FnOnce(std::io::Error) -> CheckpointError + use<> {
    let path = volume.display(path);
    move |source| CheckpointError::Io { operation, path, source }
}

/// Returns the entries of a folder, or an empty list if the folder does not exist.
pub(crate) fn list_or_none(volume: &dyn Volume, folder: &str) -> Result<Vec<DirEntry>, CheckpointError> {
    match volume.list(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(io_error_on(volume, "list", folder)),
    }
}

/// Removes a folder and its entries, one entry at a time. A missing folder is not an error.
pub(crate) fn remove_tree(volume: &dyn Volume, path: &str) -> io::Result<()> {
    let entries = match volume.list(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in entries {
        let inner = format!("{path}/{}", entry.name);
        match entry.is_dir {
            true => remove_tree(volume, &inner)?,
            false => ignore_not_found(volume.remove_file(&inner))?,
        }
    }
    ignore_not_found(volume.remove_dir(path))
}

/// Creates a folder. Treats `AlreadyExists` as success, because NFS may have repeated a successful call.
pub(crate) fn make_dir_idempotent(volume: &dyn Volume, path: &str) -> io::Result<()> {
    match volume.make_dir(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Renames a folder to a path that does not exist. Treats `NotFound` as success if `to` exists, because NFS has then
/// repeated a successful call.
pub(crate) fn rename_idempotent(volume: &dyn Volume, from: &str, to: &str) -> io::Result<()> {
    match volume.rename(from, to) {
        Err(e) if e.kind() == ErrorKind::NotFound && volume.list(to).is_ok() => Ok(()),
        moved => moved,
    }
}

/// Creates a folder if it does not exist, and syncs its parent.
pub(crate) fn ensure_dir(volume: &dyn Volume, path: &str) -> io::Result<()> {
    make_dir_idempotent(volume, path)?;
    // the parent is synced even if the folder existed, because the folder's creator may have crashed before its sync
    volume.sync_dir(parent(path))
}

/// Returns the parent folder of `path`, or `""` if the parent is the job's folder.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Treats `NotFound` as success, because another process may have removed the same file or folder.
pub(crate) fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads a small file into memory.
pub(crate) fn read_file(volume: &dyn Volume, path: &str) -> io::Result<Vec<u8>> {
    let reader = volume.open(path)?;
    let mut bytes = vec![0; reader.size()? as usize];
    reader.read_at(0, &mut bytes).map(|()| bytes)
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_dir(volume: &dyn Volume, folder: &str) -> Result<(), CheckpointError> {
    volume.sync_dir(folder).map_err(io_error_on(volume, "sync", folder))
}

/// Whether a rename failed because its target exists.
pub(crate) fn target_exists(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty)
}
