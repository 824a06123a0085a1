//! Removes the files of fenced-off groups, which have lost the right to change the checkpoints.

use super::{fences, list_or_none};
use crate::damaged::{move_to_damaged, parse_damaged_entry_name};
use crate::error::CheckpointError;
use crate::paths::{self, CHECKPOINTS_DIR, FENCES_DIR};
use crate::volume::{Volume, io_error_on, remove_tree};

/// Removes the files of fenced-off groups, and of groups that ended while they probed the volume. The call may take
/// long, because the files may amount to many gigabytes.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn remove_stale_fences(volume: &dyn Volume) -> Result<(), CheckpointError> {
    for entry in volume.list(FENCES_DIR).map_err(io_error_on(volume, "list", FENCES_DIR))? {
        if paths::parse_fence_dir_name(&entry.name).is_some_and(|(_, held)| !held) {
            match remove_stale_fence(volume, &format!("{FENCES_DIR}/{}", entry.name)) {
                Err(e) if e.is_not_found() => {} // another group removes the same files
                removed => removed?,
            }
        }
    }
    remove_stale_probes(volume)
}

/// Removes the probe folders of groups that ended during the probe, which is a trial rename of a folder.
fn remove_stale_probes(volume: &dyn Volume) -> Result<(), CheckpointError> {
    let probes = list_or_none(volume, CHECKPOINTS_DIR)?;
    let probes = || probes.iter().filter_map(|entry| paths::parse_probe_dir_name(&entry.name));
    if probes().next().is_none() {
        return Ok(());
    }
    // the holders are listed after the probes, because a group creates its holder's folder before its probe
    let mut holders = Vec::new();
    for (number, _) in fences(volume)?.into_iter().filter(|(_, held)| *held) {
        holders.extend(list_or_none(volume, &paths::fence_path(number))?.into_iter().map(|entry| entry.name));
    }
    for holder in probes().filter(|holder| !holders.iter().any(|held| held == holder)) {
        let probe = paths::probe_path(holder);
        remove_tree(volume, &probe).map_err(io_error_on(volume, "remove", &probe))?;
    }
    Ok(())
}

fn remove_stale_fence(volume: &dyn Volume, fenced: &str) -> Result<(), CheckpointError> {
    for holder in volume.list(fenced).map_err(io_error_on(volume, "list", fenced))?.iter().filter(|e| e.is_dir) {
        empty_dir(volume, &format!("{fenced}/{}", holder.name))?;
    }
    remove_tree(volume, fenced).map_err(io_error_on(volume, "remove", fenced))
}

/// Empties a holder's folder. Completes the moves to `damaged/` that a group did not finish.
pub(super) fn empty_dir(volume: &dyn Volume, folder: &str) -> Result<(), CheckpointError> {
    for entry in volume.list(folder).map_err(io_error_on(volume, "list", folder))? {
        let path = format!("{folder}/{}", entry.name);
        match parse_damaged_entry_name(&entry.name) {
            Some(step) => drop(move_to_damaged(volume, &path, step)?),
            None if entry.is_dir => remove_tree(volume, &path).map_err(io_error_on(volume, "remove", &path))?,
            None => volume.remove_file(&path).map_err(io_error_on(volume, "remove", &path))?,
        }
    }
    Ok(())
}
