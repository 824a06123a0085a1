//! Decides which group may write to the volume (fencing).
//!
//! All unfinished files of a group are in `fences/<number>/<holder>/`, the folder of the group's fence. A group changes
//! a checkpoint (commit, prune, set aside) by a rename out of or into that folder. A newer group fences off the older
//! group with a single rename of `fences/<number>`. From then on, each change by the older group fails with `NotFound`,
//! even if the older group was suspended in the middle of the change. The holder's name is random, because a suspended
//! group may create the folder of an old number long after it has listed the fences. If two groups use the same number
//! in this way, the late `mkdir` must not make the paths of the first group valid again.
//!
//! An NFS client may use the cached handle of a folder for a minute after another client has renamed that folder. A
//! rename by handle succeeds regardless of the folder's current name. The newer group therefore also moves the contents
//! of the holder's folder to another folder and removes the holder's folder. The handle of the removed folder is
//! invalid for every client that has cached it.

mod acquire;
mod newest;
mod stale;

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths::{self, FENCES_DIR};
use crate::safetensors::write_file;
use crate::volume::{Volume, ignore_not_found, io_error_on, list_or_none, sync_dir};
pub use newest::{last_published, newest_fence, newest_owner, newest_published};
use stale::empty_dir;
pub use stale::remove_stale_fences;

/// The right to change a job's checkpoints, until a newer group acquires the next fence. The group's leader acquires
/// the fence and sends it to all members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    number: u64,
    holder: String,
}

impl Fence {
    /// Returns the number of the fence. A newer fence has a higher number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Checks that this group still holds the fence. The call lists `fences/` again, so that an NFS client asks its
    /// server instead of its cache.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
    pub fn check(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        let seen = fences(volume)?;
        let work = self.work_dir();
        match volume.list(&work) {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let newest = seen.into_iter().map(|(n, _)| n).filter(|n| *n > self.number).max();
                let by = newest.and_then(|_| self.other_owner(volume));
                Err(CheckpointError::FencedOff { fence: self.number, newest, by })
            }
            Err(e) => Err(io_error_on(volume, "list", &work)(e)),
        }
    }

    /// Removes the files of unfinished saves and prunes from the work directory.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
    pub fn remove_unfinished(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        empty_dir(volume, &self.work_dir()).map_err(|e| self.or_fenced_off(volume, e))
    }

    /// Atomically replaces the small file `name` in the job's folder. The call succeeds only while the fence is held.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
    pub fn write_job_file(&self, volume: &dyn Volume, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let partial = format!("{}/{name}", self.work_dir());
        let write = || {
            ignore_not_found(volume.remove_file(&partial)).map_err(io_error_on(volume, "remove", &partial))?;
            write_file(volume, &partial, bytes)?;
            volume.rename(&partial, name).map_err(io_error_on(volume, "write", name))?;
            sync_dir(volume, "")
        };
        write().map_err(|e| self.or_fenced_off(volume, e))
    }

    /// Publishes `name` to processes that look for the newest group with [`newest_published`]. The name appears at once
    /// and disappears with the fence. Only the user that owns the fence's folder can read the name. The call creates an
    /// empty file with that name, so that a group can begin even if the volume is full.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
    pub fn publish(&self, volume: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
        let folder = paths::fence_path(self.number);
        let created = volume.create(&format!("{folder}/{name}"));
        // `name` may be secret, so the error contains only the folder
        created.map(drop).map_err(|e| self.or_fenced_off(volume, io_error_on(volume, "publish a name in", &folder)(e)))
    }

    /// Returns the job that holds the fence, or `None` if the fence was acquired without a job.
    pub fn owner(&self) -> Option<FenceOwner> {
        FenceOwner::of_holder(&self.holder)
    }

    /// Returns the owner of the newest fence if it differs from the owner of this fence. Returns `None` if the owners
    /// are equal or if either of them is unknown.
    fn other_owner(&self, volume: &dyn Volume) -> Option<FenceOwner> {
        let own = self.owner()?;
        newest_owner(volume).ok().flatten().filter(|newest| *newest != own)
    }

    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// Returns the path of the folder for unfinished files. The folder disappears when a newer group acquires a fence.
    pub fn work_dir(&self) -> String {
        format!("{}/{}", paths::fence_path(self.number), self.holder)
    }

    /// Returns `FencedOff` if `error` reports a missing file and the fence is lost. Returns `error` otherwise.
    pub(crate) fn or_fenced_off(&self, volume: &dyn Volume, error: CheckpointError) -> CheckpointError {
        match error.is_not_found() {
            true => self.check(volume).err().unwrap_or(error),
            false => error,
        }
    }
}

/// Returns the number of every fence, and whether the fence is held.
fn fences(volume: &dyn Volume) -> Result<Vec<(u64, bool)>, CheckpointError> {
    Ok(list_or_none(volume, FENCES_DIR)?.iter().filter_map(|entry| paths::parse_fence_dir_name(&entry.name)).collect())
}
