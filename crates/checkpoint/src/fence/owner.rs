//! The owner of a fence. The name of the holder's folder contains the job's name and UID, so that the owner is known as
//! soon as the fence is held. A fence of an earlier version or of a command has no owner.

use super::{fences, list_or_none};
use crate::error::CheckpointError;
use crate::paths;
use crate::volume::Volume;

/// Maximum number of characters of a UID in a folder's name, so that the name also has room for the job's name.
const MAX_UID: usize = 64;

/// The job whose group holds a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceOwner {
    /// The job's name.
    pub job: String,
    /// The job's UID.
    pub uid: String,
}

impl FenceOwner {
    /// A job with a name and a UID. Characters that may have a meaning in a path become `_`.
    pub fn new(job: &str, uid: &str) -> FenceOwner {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        FenceOwner { job: job.chars().map(plain).collect(), uid: uid.chars().map(plain).take(MAX_UID).collect() }
    }

    /// A new name for a holder's folder of this owner.
    pub(super) fn new_holder(&self) -> String {
        format!("{},{},{}", stagecoach_files::random_hex(), self.job, self.uid)
    }

    /// The owner in a holder's name; `None` if the name has no owner.
    pub(super) fn of_holder(name: &str) -> Option<FenceOwner> {
        match name.split(',').collect::<Vec<_>>()[..] {
            [_, job, uid] => Some(FenceOwner::new(job, uid)),
            _ => None,
        }
    }
}

impl std::fmt::Display for FenceOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the job {} (UID {})", self.job, self.uid)
    }
}

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
