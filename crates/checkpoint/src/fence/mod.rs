//! Fencing: which group may write to the volume.
//!
//! Everything unfinished is in `fences/<number>/<holder>/`, and whatever changes a checkpoint (commit, prune, set
//! aside) is a rename out of or into that folder. A newer group renames `fences/<number>` once, and from then on each
//! of those renames fails with `NotFound`, wherever the older group was stopped. The holder's name is random, so that a
//! late `mkdir` of an old number, by a group that was suspended between listing and creating, does not make the first
//! holder's paths valid again.
//!
//! A client of NFS may remember for a minute which folder a path was, and a rename goes by the folders' handles,
//! whatever they are called now. So the newer group also moves what is in the holder's folder to another one and
//! removes it: its handle is worth nothing then, to whoever remembers it.

mod acquire;
mod owner;
mod published;
mod stale;

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, volume_io};
use crate::paths::{self, FENCES_DIR};
use crate::safetensors::write_file;
use crate::volume::{DirEntry, Volume, ignore_not_found, sync_dir};
pub use owner::{FenceOwner, newest_fence, newest_owner};
pub use published::{last_published, newest_published};
use stale::empty_dir;
pub use stale::remove_stale_fences;

/// The right to change a job's checkpoints, until a newer group acquires the next fence. Stage 0 acquires it and sends
/// it to all stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    number: u64,
    holder: String,
}

impl Fence {
    /// Number of the fence: higher is newer.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Checks that the fence is still held. `fences/` is listed again, so that a client of NFS asks its server.
    ///
    /// # Errors
    /// `FencedOff` if not; or if the volume fails.
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

    /// Removes files of unfinished saves and prunes from the work directory.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn remove_unfinished(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        empty_dir(volume, &self.work_dir()).map_err(|e| self.or_fenced_off(volume, e))
    }

    /// Replaces the small file `name` in the job's folder, atomically and only while the fence is held.
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

    /// Publishes `name` to who looks for the newest group ([`newest_published`]) and may read its folder, which is its
    /// owner's alone: at once, and only while the fence is held; it goes with the fence. It is the name of an empty
    /// file, so that a group can begin also on a volume that is full.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn publish(&self, volume: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
        let folder = paths::fence_path(self.number);
        let created = volume.create(&format!("{folder}/{name}"));
        // the name may be secret: the error is of the folder
        created.map(drop).map_err(|e| self.or_fenced_off(volume, volume_io(volume, "publish a name in", &folder)(e)))
    }

    /// The job that holds it, if it was acquired for one.
    pub fn owner(&self) -> Option<FenceOwner> {
        FenceOwner::of_holder(&self.holder)
    }

    /// The job that holds the newest fence, if it is known to be another than this fence's.
    fn other_owner(&self, volume: &dyn Volume) -> Option<FenceOwner> {
        let own = self.owner()?;
        newest_owner(volume).ok().flatten().filter(|newest| *newest != own)
    }

    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// Path of the folder for unfinished files: it no longer exists once a newer group has acquired a fence.
    pub fn work_dir(&self) -> String {
        format!("{}/{}", paths::fence_path(self.number), self.holder)
    }

    /// Returns `FencedOff` if `error` is a missing file and the fence is no longer held; else `error`.
    pub(crate) fn or_fenced_off(&self, volume: &dyn Volume, error: CheckpointError) -> CheckpointError {
        match error.is_not_found() {
            true => self.check(volume).err().unwrap_or(error),
            false => error,
        }
    }
}

/// The entries of a folder; none if it does not exist.
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
