//! Acquiring a fence: a group claims the next number and fences off older groups.

use std::io::ErrorKind;

use super::probe::probe_folder_rename;
use super::{Fence, fences, list_or_none, newest_fence};
use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths::{self, CHECKPOINTS_DIR, FENCES_DIR};
use crate::volume::{Volume, ensure_dir, ignore_not_found, make_dir_idempotent, sync_dir, target_exists, volume_io};

/// Maximum attempts to claim a fence number, and to remove the folder of a fence.
const MAX_ATTEMPTS: u32 = 100;

impl Fence {
    /// Acquires the next fence and fences off all older ones.
    ///
    /// # Errors
    /// `FencedOff` if a newer group acquired a fence meanwhile; `NoFolderRename` if the volume lacks an operation that
    /// a commit needs; or if the volume fails.
    pub fn acquire(volume: &dyn Volume) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, None, stagecoach_files::random_hex())
    }

    /// Acquires the fence after fence `last`, the newest fence that the caller has seen. At most one caller succeeds.
    ///
    /// # Errors
    /// `FencedOff` if another group has acquired that fence; otherwise as [`Fence::acquire`].
    pub fn acquire_after(volume: &dyn Volume, last: u64) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, Some(last), stagecoach_files::random_hex())
    }

    /// Acquires a fence for the job `owner`: the next fence, or the fence after `last`.
    ///
    /// # Errors
    /// Like [`Fence::acquire_after`].
    pub fn acquire_for(volume: &dyn Volume, owner: &FenceOwner, last: Option<u64>) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, last, owner.new_holder())
    }

    fn acquire_next(volume: &dyn Volume, last: Option<u64>, holder: String) -> Result<Fence, CheckpointError> {
        for folder in [FENCES_DIR, CHECKPOINTS_DIR] {
            ensure_dir(volume, folder).map_err(volume_io(volume, "create", folder))?;
        }
        // a dangling link, for example to a volume that is not mounted, must not look like an empty folder
        volume.list(CHECKPOINTS_DIR).map_err(volume_io(volume, "list", CHECKPOINTS_DIR))?;
        let number = claim_next(volume, last)?;
        let fence = Fence { number, holder };
        let work = fence.work_dir();
        make_dir_idempotent(volume, &work)
            .map_err(|e| fence.or_fenced_off(volume, volume_io(volume, "create", &work)(e)))?;
        // listed after this group's folder exists: a later group then sees the folder and renames it
        let seen = fences(volume)?;
        if let Some(newer) = seen.iter().map(|(n, _)| *n).filter(|n| *n > number).max() {
            // this group was suspended after it listed the fences, and a folder created too late is no claim
            let _ = volume.remove_dir(&work).and_then(|()| volume.remove_dir(&paths::fence_path(number)));
            let by = fence.other_owner(volume);
            return Err(CheckpointError::FencedOff { fence: number, newest: Some(newer), by });
        }
        for (older, _) in seen.into_iter().filter(|(n, held)| *held && *n < number) {
            fence_off(volume, older)?;
        }
        retire_holders(volume)?;
        for folder in [&paths::fence_path(number), FENCES_DIR] {
            sync_dir(volume, folder).map_err(|e| fence.or_fenced_off(volume, e))?;
        }
        probe_folder_rename(volume, &fence)?;
        Ok(fence)
    }
}

/// Creates the folder `highest + 1`, which claims that number. If `expected` is given, `highest` must still equal it.
fn claim_next(volume: &dyn Volume, expected: Option<u64>) -> Result<u64, CheckpointError> {
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let highest = newest_fence(volume)?;
        if let Some(expected) = expected.filter(|expected| *expected < highest) {
            return Err(CheckpointError::FencedOff { fence: expected, newest: Some(highest), by: None });
        }
        let number = highest.saturating_add(1);
        let path = paths::fence_path(number);
        match volume.make_private_dir(&path) {
            Ok(()) => return Ok(number),
            Err(e) => {
                let raced = e.kind() == ErrorKind::AlreadyExists;
                let error = volume_io(volume, "create", &path)(e);
                if !raced {
                    return Err(error);
                }
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or(CheckpointError::FencedOff { fence: 0, newest: None, by: None }))
}

fn fence_off(volume: &dyn Volume, number: u64) -> Result<(), CheckpointError> {
    let from = paths::fence_path(number);
    for again in 0.. {
        match volume.rename(&from, &paths::fenced_path(number, again)) {
            // the number was reused; see the module's documentation
            Err(e) if target_exists(&e) => {}
            // another group fenced it off first
            Err(e) if e.kind() == ErrorKind::NotFound => break,
            renamed => {
                renamed.map_err(volume_io(volume, "fence off", &from))?;
                break;
            }
        }
    }
    Ok(())
}

/// Removes the folders of fenced-off holders, including the folders of groups that died before they removed them. The
/// contents are moved instead of removed, because removing them may take long.
fn retire_holders(volume: &dyn Volume) -> Result<(), CheckpointError> {
    for entry in list_or_none(volume, FENCES_DIR)? {
        if paths::parse_fence_dir_name(&entry.name).is_some_and(|(_, held)| !held) {
            let fenced = format!("{FENCES_DIR}/{}", entry.name);
            let holders = list_or_none(volume, &fenced)?.into_iter().filter(|entry| entry.is_dir);
            for holder in holders.filter(|entry| !paths::is_retired(&entry.name)) {
                retire(volume, &format!("{fenced}/{}", holder.name))?;
            }
        }
    }
    Ok(())
}

/// Moves the contents of a holder's folder, where a late group may still create files, and removes the folder.
fn retire(volume: &dyn Volume, holder: &str) -> Result<(), CheckpointError> {
    let mut last = None;
    for again in 0..MAX_ATTEMPTS {
        match volume.remove_dir(holder) {
            Err(e) if target_exists(&e) => last = Some(e),
            removed => return ignore_not_found(removed).map_err(volume_io(volume, "remove", holder)),
        }
        let retired = paths::retired_path(holder, again);
        match make_dir_idempotent(volume, &retired) {
            // another group is removing the whole fence
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            made => made.map_err(volume_io(volume, "create", &retired))?,
        }
        for entry in list_or_none(volume, holder)? {
            let from = format!("{holder}/{}", entry.name);
            let moved = ignore_not_found(volume.rename(&from, &format!("{retired}/{}", entry.name)));
            moved.map_err(volume_io(volume, "move", &from))?;
        }
    }
    let in_the_way = last.unwrap_or_else(|| ErrorKind::DirectoryNotEmpty.into());
    Err(volume_io(volume, "remove", holder)(in_the_way))
}
