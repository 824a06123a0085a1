//! Finds the newest fence of a volume, its owner, and the names that groups have published. A fence is the right to
//! change the checkpoints. A group holds its fence until a newer group fences it off.

use super::{fences, list_or_none};
use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths::{self, FENCES_DIR};
use crate::volume::{DirEntry, Volume};

/// Returns the number of the newest fence, or 0 if there is none. A fenced-off fence counts while its folder exists.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn newest_fence(volume: &dyn Volume) -> Result<u64, CheckpointError> {
    Ok(fences(volume)?.into_iter().map(|(number, _)| number).max().unwrap_or(0))
}

/// Returns the number of the newest held fence, or `None` if no fence is held.
fn newest_held(volume: &dyn Volume) -> Result<Option<u64>, CheckpointError> {
    Ok(fences(volume)?.into_iter().filter_map(|(number, held)| held.then_some(number)).max())
}

/// Returns the owner of the newest held fence, or `None` if no fence is held or the fence has no owner.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn newest_owner(volume: &dyn Volume) -> Result<Option<FenceOwner>, CheckpointError> {
    let Some(newest) = newest_held(volume)? else { return Ok(None) };
    let holders = list_or_none(volume, &paths::fence_path(newest))?.into_iter().filter(|entry| entry.is_dir);
    Ok(holders.into_iter().find_map(|holder| FenceOwner::of_holder(&holder.name)))
}

/// Returns the number of the newest held fence, and the name with `prefix` that its group has published. The outer
/// `None` means that no fence is held. The inner `None` means that the group has published no such name. Every call
/// lists the folders again, so that network file systems ask their server.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn newest_published(volume: &dyn Volume, prefix: &str) -> Result<Option<(u64, Option<String>)>, CheckpointError> {
    let Some(newest) = newest_held(volume)? else { return Ok(None) };
    Ok(Some((newest, published_in(volume, &paths::fence_path(newest), prefix)?)))
}

/// Returns the number of the newest fence whose group has published a name with `prefix`, and that name. A fenced-off
/// fence counts while its folder exists.
///
/// # Errors
/// Returns an error if the volume fails.
pub fn last_published(volume: &dyn Volume, prefix: &str) -> Result<Option<(u64, String)>, CheckpointError> {
    let number = |entry: DirEntry| Some((paths::parse_fence_dir_name(&entry.name)?.0, entry.name));
    let mut folders: Vec<(u64, String)> = list_or_none(volume, FENCES_DIR)?.into_iter().filter_map(number).collect();
    folders.sort_unstable();
    for (number, folder) in folders.into_iter().rev() {
        if let Some(name) = published_in(volume, &format!("{FENCES_DIR}/{folder}"), prefix)? {
            return Ok(Some((number, name)));
        }
    }
    Ok(None)
}

/// Returns the name with `prefix` in the folder of a fence, or `None` if there is no such name or no such folder.
fn published_in(volume: &dyn Volume, folder: &str, prefix: &str) -> Result<Option<String>, CheckpointError> {
    let mut names = list_or_none(volume, folder)?.into_iter().map(|entry| entry.name);
    Ok(names.find(|name| name.starts_with(prefix)))
}
