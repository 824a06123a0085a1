//! Removing the files of groups that are fenced off.

use crate::damaged::{move_to_damaged, parse_damaged_entry_name};
use crate::error::{CheckpointError, volume_io};
use crate::paths::{self, FENCES_DIR};
use crate::volume::{Volume, remove_tree};

/// Removes files of fenced-off groups. May take long: they can be many gigabytes.
///
/// # Errors
/// If the volume fails.
pub fn remove_stale_fences(volume: &dyn Volume) -> Result<(), CheckpointError> {
    for entry in volume.list(FENCES_DIR).map_err(volume_io(volume, "list", FENCES_DIR))? {
        if paths::parse_fence_dir_name(&entry.name).is_some_and(|(_, held)| !held) {
            match remove_stale_fence(volume, &format!("{FENCES_DIR}/{}", entry.name)) {
                Err(e) if e.is_not_found() => {} // another group removes them too
                removed => removed?,
            }
        }
    }
    Ok(())
}

fn remove_stale_fence(volume: &dyn Volume, fenced: &str) -> Result<(), CheckpointError> {
    for holder in volume.list(fenced).map_err(volume_io(volume, "list", fenced))?.iter().filter(|e| e.is_dir) {
        empty_dir(volume, &format!("{fenced}/{}", holder.name))?;
    }
    remove_tree(volume, fenced).map_err(volume_io(volume, "remove", fenced))
}

/// Empties a holder's folder; pending moves to `damaged/` are completed.
pub(super) fn empty_dir(volume: &dyn Volume, folder: &str) -> Result<(), CheckpointError> {
    for entry in volume.list(folder).map_err(volume_io(volume, "list", folder))? {
        let path = format!("{folder}/{}", entry.name);
        match parse_damaged_entry_name(&entry.name) {
            Some(step) => drop(move_to_damaged(volume, &path, step)?),
            None if entry.is_dir => remove_tree(volume, &path).map_err(volume_io(volume, "remove", &path))?,
            None => volume.remove_file(&path).map_err(volume_io(volume, "remove", &path))?,
        }
    }
    Ok(())
}
