//! Fencing: decides which group may write to the volume.
//!
//! All unfinished files are in `fences/<number>/<holder>/`. Every change of a checkpoint (commit, prune, set aside) is
//! a rename out of or into that folder. A newer group renames `fences/<number>` once, and from then on each such rename
//! fails with `NotFound`, wherever the older group was stopped. The holder's name is random, because a suspended group
//! may create the folder of an old number long after it has listed the fences. The late `mkdir` must not make the first
//! holder's paths valid again.
//!
//! An NFS client may cache for a minute which folder a path referred to, and a rename uses the folders' handles
//! regardless of their current names. The newer group therefore also moves the contents of the holder's folder to
//! another folder and removes the holder's folder. The handle of that folder is then invalid for every client that has
//! cached it.

mod acquire;
mod newest;
mod probe;
mod published;
mod stale;

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths::{self, FENCES_DIR};
use crate::safetensors::write_file;
use crate::volume::{DirEntry, Volume, ignore_not_found, sync_dir, volume_io};
pub use newest::{newest_fence, newest_owner};
pub use published::{last_published, newest_published};
use stale::empty_dir;
pub use stale::remove_stale_fences;

/// The right to change a job's checkpoints, until a newer group acquires the next fence. Stage 0 acquires the fence and
/// sends it to all stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    number: u64,
    holder: String,
}

impl Fence {
    /// The number of the fence. A newer fence has a higher number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Checks that the fence is still held. Lists `fences/` again, so that an NFS client asks its server.
    ///
    /// # Errors
    /// `FencedOff` if the fence is no longer held; or if the volume fails.
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
            Err(e) => Err(volume_io(volume, "list", &work)(e)),
        }
    }

    /// Removes the files of unfinished saves and prunes from the work directory.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn remove_unfinished(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        empty_dir(volume, &self.work_dir()).map_err(|e| self.or_fenced_off(volume, e))
    }

    /// Replaces the small file `name` in the job's folder, atomically, and only while the fence is held.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn write_job_file(&self, volume: &dyn Volume, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let partial = format!("{}/{name}", self.work_dir());
        let write = || {
            ignore_not_found(volume.remove_file(&partial)).map_err(volume_io(volume, "remove", &partial))?;
            write_file(volume, &partial, bytes)?;
            volume.rename(&partial, name).map_err(volume_io(volume, "write", name))?;
            sync_dir(volume, "")
        };
        write().map_err(|e| self.or_fenced_off(volume, e))
    }

    /// Publishes `name` to processes that look for the newest group ([`newest_published`]). Only the user that owns the
    /// fence's folder can read the name. Publishing takes effect at once, and only while the fence is held; the name
    /// disappears with the fence. `name` is the name of an empty file, so that a group can begin even if the volume is
    /// full.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn publish(&self, volume: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
        let folder = paths::fence_path(self.number);
        let created = volume.create(&format!("{folder}/{name}"));
        // `name` may be secret, so the error contains only the folder
        created.map(drop).map_err(|e| self.or_fenced_off(volume, volume_io(volume, "publish a name in", &folder)(e)))
    }

    /// The job that holds the fence, if the fence was acquired for a job.
    pub fn owner(&self) -> Option<FenceOwner> {
        FenceOwner::of_holder(&self.holder)
    }

    /// The job that holds the newest fence, if it is known to be another job than this fence's.
    fn other_owner(&self, volume: &dyn Volume) -> Option<FenceOwner> {
        let own = self.owner()?;
        newest_owner(volume).ok().flatten().filter(|newest| *newest != own)
    }

    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// Path of the folder for unfinished files. The folder no longer exists once a newer group has acquired a fence.
    pub fn work_dir(&self) -> String {
        format!("{}/{}", paths::fence_path(self.number), self.holder)
    }

    /// Returns `FencedOff` if `error` is a missing file and the fence is no longer held; otherwise `error`.
    pub(crate) fn or_fenced_off(&self, volume: &dyn Volume, error: CheckpointError) -> CheckpointError {
        match error.is_not_found() {
            true => self.check(volume).err().unwrap_or(error),
            false => error,
        }
    }
}

/// The entries of a folder; empty if the folder does not exist.
fn list_or_none(volume: &dyn Volume, folder: &str) -> Result<Vec<DirEntry>, CheckpointError> {
    match volume.list(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(volume_io(volume, "list", folder)),
    }
}

/// The numbers of all fences, and whether each is held.
fn fences(volume: &dyn Volume) -> Result<Vec<(u64, bool)>, CheckpointError> {
    Ok(list_or_none(volume, FENCES_DIR)?.iter().filter_map(|entry| paths::parse_fence_dir_name(&entry.name)).collect())
}
