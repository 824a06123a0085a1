//! Fencing: which group may write to the volume.
//!
//! Everything unfinished is in `fences/<number>/<holder>/`, and whatever changes a checkpoint (commit, prune, set
//! aside) is a rename out of or into that folder. A newer group renames `fences/<number>` once, and from then on each of those
//! renames fails with `NotFound`, wherever the older group was stopped. The holder's name is random, so that a late
//! `mkdir` of an old number, by a group that was suspended between listing and creating, does not make the first
//! holder's paths valid again.
//!
//! A client of NFS may remember for a minute which folder a path was, and a rename goes by the folders' handles, whatever they
//! are called now. So the newer group also moves what is in the holder's folder to another one and removes it: its handle is
//! worth nothing then, to whoever remembers it.

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, volume_io};
use crate::paths::{self, CHECKPOINTS_DIR, DAMAGED_DIR, FENCES_DIR};
use crate::probe::probe_folder_rename;
use crate::safetensors::write_file;
use crate::volume::{
    DirEntry, Volume, ensure_dir, ignore_not_found, make_dir_idempotent, remove_tree, rename_idempotent, sync_dir,
    target_exists,
};

/// Maximum attempts to claim a fence number, and to remove the folder of a fence.
const MAX_ATTEMPTS: u32 = 100;

/// The right to change a job's checkpoints, until a newer group acquires the next fence. Stage 0 acquires it and sends
/// it to all stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    number: u64,
    holder: String,
}

impl Fence {
    /// Acquires the next fence and fences off all older ones.
    ///
    /// # Errors
    /// `FencedOff` if a newer group acquired one meanwhile; `NoFolderRename` if the volume can't do what a commit needs; or if
    /// the volume fails.
    pub fn acquire(volume: &dyn Volume) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, None)
    }

    /// Acquires the fence after fence `last`, which is the newest one that the caller has seen: one caller at most does.
    ///
    /// # Errors
    /// `FencedOff` if another has acquired it; or as [`Fence::acquire`].
    pub fn acquire_after(volume: &dyn Volume, last: u64) -> Result<Fence, CheckpointError> {
        Fence::acquire_next(volume, Some(last))
    }

    fn acquire_next(volume: &dyn Volume, last: Option<u64>) -> Result<Fence, CheckpointError> {
        for folder in [FENCES_DIR, CHECKPOINTS_DIR] {
            ensure_dir(volume, folder).map_err(volume_io(volume, "create", folder))?;
        }
        // a dangling link, to a volume that is not mounted, must not look like an empty folder
        volume.list(CHECKPOINTS_DIR).map_err(volume_io(volume, "list", CHECKPOINTS_DIR))?;
        let number = claim_next(volume, last)?;
        let fence = Fence { number, holder: stagecoach_files::random_hex() };
        let work = fence.work_dir();
        make_dir_idempotent(volume, &work)
            .map_err(|e| fence.or_fenced_off(volume, volume_io(volume, "create", &work)(e)))?;
        // listed after our folder exists: a later group sees it and renames it
        let seen = fences(volume)?;
        if let Some(newer) = seen.iter().map(|(n, _)| *n).filter(|n| *n > number).max() {
            // suspended since listing: a folder created too late is not a claim
            let _ = volume.remove_dir(&work).and_then(|()| volume.remove_dir(&paths::fence_path(number)));
            return Err(CheckpointError::FencedOff { fence: number, newest: Some(newer) });
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

    /// Number of the fence: higher is newer.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Checks that the fence is still held. `fences/` is listed anew, so that a client of NFS asks its server.
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
                Err(CheckpointError::FencedOff { fence: self.number, newest })
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
    /// owner's alone: at once, and only while the fence is held; it goes with the fence. It is the name of an empty file, so that a
    /// group can begin also on a volume that is full.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume fails.
    pub fn publish(&self, volume: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
        let folder = paths::fence_path(self.number);
        let created = volume.create(&format!("{folder}/{name}"));
        // the name may be secret: the error is of the folder
        created.map(drop).map_err(|e| self.or_fenced_off(volume, volume_io(volume, "publish a name in", &folder)(e)))
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

/// The number of the newest fence, and the name with `prefix` that its group has published, or none yet; `None` without a fence.
/// The folders are listed anew at every call: network file systems then ask their server.
///
/// # Errors
/// If the volume fails.
pub fn newest_published(volume: &dyn Volume, prefix: &str) -> Result<Option<(u64, Option<String>)>, CheckpointError> {
    let Some((newest, _)) = fences(volume)?.into_iter().filter(|(_, held)| *held).max() else { return Ok(None) };
    Ok(Some((newest, published_in(volume, &paths::fence_path(newest), prefix)?)))
}

/// The number of the newest fence whose group has published a name with `prefix`, and that name: also of one that is fenced off, as long
/// as its folder is there.
///
/// # Errors
/// If the volume fails.
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

/// The name with `prefix` in the folder of a fence; none in one that was fenced off or removed since.
fn published_in(volume: &dyn Volume, folder: &str, prefix: &str) -> Result<Option<String>, CheckpointError> {
    let mut names = list_or_none(volume, folder)?.into_iter().map(|entry| entry.name);
    Ok(names.find(|name| name.starts_with(prefix)))
}

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

/// Moves the damaged checkpoint `from` into `damaged/`, under a free name; returns its path.
pub(crate) fn move_to_damaged(volume: &dyn Volume, from: &str, step: u64) -> Result<String, CheckpointError> {
    ensure_dir(volume, DAMAGED_DIR).map_err(volume_io(volume, "create", DAMAGED_DIR))?;
    let mut to = format!("{DAMAGED_DIR}/{}", paths::step_dir_name(step));
    for again in 2.. {
        match rename_idempotent(volume, from, &to) {
            Err(e) if target_exists(&e) => to = format!("{DAMAGED_DIR}/{}.{again}", paths::step_dir_name(step)),
            moved => {
                moved.map_err(volume_io(volume, "set aside", from))?;
                break;
            }
        }
    }
    sync_dir(volume, DAMAGED_DIR)?;
    Ok(to)
}

/// Name in a fence's folder of a checkpoint that is being moved to `damaged/`.
pub(crate) fn damaged_entry_name(step: u64) -> String {
    format!("damaged-{}", paths::step_dir_name(step))
}

/// Empties a holder's folder; pending moves to `damaged/` are completed.
fn empty_dir(volume: &dyn Volume, folder: &str) -> Result<(), CheckpointError> {
    for entry in volume.list(folder).map_err(volume_io(volume, "list", folder))? {
        let path = format!("{folder}/{}", entry.name);
        match entry.name.strip_prefix("damaged-").and_then(paths::parse_step_dir_name) {
            Some(step) => drop(move_to_damaged(volume, &path, step)?),
            None if entry.is_dir => remove_tree(volume, &path).map_err(volume_io(volume, "remove", &path))?,
            None => volume.remove_file(&path).map_err(volume_io(volume, "remove", &path))?,
        }
    }
    Ok(())
}

/// Creates the folder `highest + 1`, which claims that number. `highest` must still be `expected`, if that is given.
fn claim_next(volume: &dyn Volume, expected: Option<u64>) -> Result<u64, CheckpointError> {
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let highest = fences(volume)?.into_iter().map(|(n, _)| n).max().unwrap_or(0);
        if let Some(expected) = expected.filter(|expected| *expected < highest) {
            return Err(CheckpointError::FencedOff { fence: expected, newest: Some(highest) });
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
    Err(last.unwrap_or(CheckpointError::FencedOff { fence: 0, newest: None }))
}

fn fence_off(volume: &dyn Volume, number: u64) -> Result<(), CheckpointError> {
    let from = paths::fence_path(number);
    for again in 0.. {
        match volume.rename(&from, &paths::fenced_path(number, again)) {
            // number reused, see the module's comment
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

/// Removes the folders of holders that are fenced off, also by a group that died before it came to that; what is in them is
/// moved, as removing it may take long.
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

/// Moves what is in a holder's folder, in which a late group may still create something, and removes the folder.
fn retire(volume: &dyn Volume, holder: &str) -> Result<(), CheckpointError> {
    let mut last = None;
    for again in 0..MAX_ATTEMPTS {
        match volume.remove_dir(holder) {
            Err(e) if target_exists(&e) => last = Some(e),
            removed => return ignore_not_found(removed).map_err(volume_io(volume, "remove", holder)),
        }
        let retired = paths::retired_path(holder, again);
        match make_dir_idempotent(volume, &retired) {
            // another group removes the whole fence
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
