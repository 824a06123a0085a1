//! The newest fence of a volume, and its owner.

use super::{fences, list_or_none};
use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths;
use crate::volume::Volume;

/// The number of the newest fence, held or fenced off, whose folder still exists; 0 if there is none.
///
/// # Errors
/// If the volume fails.
pub fn newest_fence(volume: &dyn Volume) -> Result<u64, CheckpointError> {
    Ok(fences(volume)?.into_iter().map(|(number, _)| number).max().unwrap_or(0))
}

/// The owner of the newest held fence; `None` if that fence has no owner, or if no fence is held.
///
/// # Errors
/// If the volume fails.
pub fn newest_owner(volume: &dyn Volume) -> Result<Option<FenceOwner>, CheckpointError> {
    let Some((newest, _)) = fences(volume)?.into_iter().filter(|(_, held)| *held).max() else { return Ok(None) };
    let holders = list_or_none(volume, &paths::fence_path(newest))?.into_iter().filter(|entry| entry.is_dir);
    Ok(holders.into_iter().find_map(|holder| FenceOwner::of_holder(&holder.name)))
}
