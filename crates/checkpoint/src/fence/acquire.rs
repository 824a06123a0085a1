//! Acquires a fence, the right to change a job's checkpoints, before training starts. A group claims the next fence
//! number, and fences off older groups. These groups can then no longer change checkpoints. Finally, the group probes
//! whether the volume supports the operations of a commit.

use std::io::{self, ErrorKind};

use super::{Fence, fences, list_or_none, newest_fence};
use crate::error::CheckpointError;
use crate::fence_owner::FenceOwner;
use crate::paths::{self, CHECKPOINTS_DIR, FENCES_DIR};
use crate::volume::{
    Volume, ensure_dir, ignore_not_found, io_error_on, make_dir_idempotent, remove_tree, rename_idempotent, sync_dir,
    target_exists,
};

/// The maximum number of attempts to claim a fence number, and to remove a holder's folder (the folder of a group's
/// unfinished files).
const MAX_ATTEMPTS: u32 = 100;

/// The error numbers EPERM and EMFILE. Some file systems over object stores return them instead of "unsupported".
const NOT_PERMITTED: i32 = 1;
const TOO_MANY_OPEN_FILES: i32 = 24;

impl Fence {
    /// Acquires the next fence and fences off all older ones.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if a newer group acquires a fence during the call. Returns
    /// [`CheckpointError::NoFolderRename`] if the volume lacks an operation that a commit needs, or another error if
    /// the volume fails.
    pub fn acquire(volume: &dyn Volume) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, None, stagecoach_files::random_hex())
    }

    /// Acquires a fence for the job `owner`: the fence after `last`, the newest fence that the caller has seen, or the
    /// next fence if `last` is `None`. At most one caller acquires the fence after `last`.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if another group has acquired the fence after `last` or a newer fence.
    /// Also returns the errors of [`Fence::acquire`].
    pub fn acquire_for(volume: &dyn Volume, owner: &FenceOwner, last: Option<u64>) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, last, owner.new_holder())
    }

    fn acquire_next(volume: &dyn Volume, last: Option<u64>, holder: String) -> Result<Fence, CheckpointError> {
        for folder in [FENCES_DIR, CHECKPOINTS_DIR] {
            ensure_dir(volume, folder).map_err(io_error_on(volume, "create", folder))?;
        }
        // `list` fails if the folder is a dangling link, for example to a volume that is not mounted: such a link must
        // not count as an empty folder
        volume.list(CHECKPOINTS_DIR).map_err(io_error_on(volume, "list", CHECKPOINTS_DIR))?;
        let number = claim_next(volume, last)?;
        let fence = Fence { number, holder };
        let work = fence.work_dir();
        make_dir_idempotent(volume, &work)
            .map_err(|e| fence.or_fenced_off(volume, io_error_on(volume, "create", &work)(e)))?;
        // this group creates its folder before it lists the fences, so a group that claims a number after the list sees
        // the folder and fences it off
        let seen = fences(volume)?;
        if let Some(newer) = seen.iter().map(|(n, _)| *n).filter(|n| *n > number).max() {
            // this group was suspended before its `mkdir`, so newer groups did not see its folder when they listed the
            // fences: the folder is not a valid claim
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

/// Claims the number after the highest number by creating its folder. If `expected` is given, the highest number must
/// not exceed it.
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
                let error = io_error_on(volume, "create", &path)(e);
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
            // the number was used twice: see the documentation of the module `fence`
            Err(e) if target_exists(&e) => {}
            // another group has already fenced off this number
            Err(e) if e.kind() == ErrorKind::NotFound => break,
            renamed => {
                renamed.map_err(io_error_on(volume, "fence off", &from))?;
                break;
            }
        }
    }
    Ok(())
}

/// Removes the holders' folders of all fenced-off fences, including the fences that an earlier group fenced off before
/// it died. Moves the contents of each folder away before it removes the folder, because deleting the contents may take
/// long.
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

/// Moves the contents of a holder's folder away and removes the folder. Repeats both steps, because a fenced-off group
/// may still create files in the folder.
fn retire(volume: &dyn Volume, holder: &str) -> Result<(), CheckpointError> {
    let mut last = None;
    for again in 0..MAX_ATTEMPTS {
        match volume.remove_dir(holder) {
            Err(e) if target_exists(&e) => last = Some(e),
            removed => return ignore_not_found(removed).map_err(io_error_on(volume, "remove", holder)),
        }
        let retired = paths::retired_path(holder, again);
        match make_dir_idempotent(volume, &retired) {
            // another group is removing the whole fence
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            made => made.map_err(io_error_on(volume, "create", &retired))?,
        }
        for entry in list_or_none(volume, holder)? {
            let from = format!("{holder}/{}", entry.name);
            let moved = ignore_not_found(volume.rename(&from, &format!("{retired}/{}", entry.name)));
            moved.map_err(io_error_on(volume, "move", &from))?;
        }
    }
    let in_the_way = last.unwrap_or_else(|| ErrorKind::DirectoryNotEmpty.into());
    Err(io_error_on(volume, "remove", holder)(in_the_way))
}

/// Renames a folder with a file in it from the fence's folder into the folder of checkpoints, as a commit does.
///
/// # Errors
/// Returns `NoFolderRename` or `OtherFileSystem` if the volume can't rename the folder, `FencedOff` if the group has
/// lost the fence, or another error if the volume fails.
fn probe_folder_rename(volume: &dyn Volume, fence: &Fence) -> Result<(), CheckpointError> {
    let (from, to) = (format!("{}/probe", fence.work_dir()), paths::probe_path(fence.holder()));
    let file = |folder: &str| format!("{folder}/file");
    let io = |operation, path: &str, error| fence.or_fenced_off(volume, io_error_on(volume, operation, path)(error));
    let unable = |problem: String| CheckpointError::NoFolderRename { path: volume.display(""), problem };
    make_dir_idempotent(volume, &from).map_err(|e| io("create", &from, e))?;
    volume.create(&file(&from)).map_err(|e| io("create", &file(&from), e))?;
    match rename_idempotent(volume, &from, &to) {
        Err(e) if e.kind() == ErrorKind::CrossesDevices => {
            let [checkpoints, fences] = [CHECKPOINTS_DIR, FENCES_DIR].map(|folder| volume.display(folder));
            return Err(CheckpointError::OtherFileSystem { checkpoints, fences });
        }
        Err(e) if is_inability(&e) => return Err(unable(e.to_string())),
        renamed => renamed.map_err(|e| io("rename", &from, e))?,
    }
    let is_there = |path: &str| match volume.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        opened => opened.map(|_| true).map_err(|e| io("open", path, e)),
    };
    match (is_there(&file(&from))?, is_there(&file(&to))?) {
        (false, true) => {}
        // either a newer group removed the file, or the volume lost it
        (false, false) => {
            fence.check(volume)?;
            return Err(unable("its file was lost".to_owned()));
        }
        (true, _) => return Err(unable("its file stayed where it was".to_owned())),
    }
    remove_tree(volume, &to).map_err(|e| io("remove", &to, e))
}

fn is_inability(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
        || matches!(error.raw_os_error(), Some(NOT_PERMITTED | TOO_MANY_OPEN_FILES))
}
