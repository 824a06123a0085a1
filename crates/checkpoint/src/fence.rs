//! Who may write: the living group's folder on the volume.
//!
//! Everything unfinished lies in `fences/<number>/<holder>/`, and whatever changes a checkpoint (commit, prune, set
//! aside) is a rename out of or into it. A newer group renames that folder once, and from then on each of those steps
//! fails by path, wherever an older group was stopped. The holder's random name keeps a late `mkdir` of an old number,
//! by a group that slept between listing and making, from reviving the paths of that number's first holder.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, on};
use crate::layout::{self, CHECKPOINTS, DAMAGED, FENCES};
use crate::shard::write_file;
use crate::volume::{Volume, ensure_dir, gone, make_own_dir, move_dir, remove_tree};

/// Starting groups that may get in each other's way before one gives up.
const TRIES: u32 = 100;

/// The right to change a job's checkpoints, until a newer group takes the next one. Stage 0 takes it and sends it to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    number: u64,
    holder: String,
}

impl Fence {
    /// Takes the next fence and fences every older one off.
    ///
    /// # Errors
    /// `FencedOff` if a newer group took one meanwhile; or if the volume refuses.
    pub fn take(volume: &dyn Volume) -> Result<Fence, CheckpointError> {
        for folder in [FENCES, CHECKPOINTS] {
            ensure_dir(volume, folder).map_err(on(volume, "create", folder))?;
        }
        // a link to what is not mounted is there, and holds nothing: that must not look like a fresh start
        volume.list(CHECKPOINTS).map_err(on(volume, "list", CHECKPOINTS))?;
        let number = claim(volume)?;
        let fence = Fence { number, holder: format!("{:016x}", RandomState::new().build_hasher().finish()) };
        let work = fence.work();
        make_own_dir(volume, &work).map_err(|e| fence.explain(volume, on(volume, "create", &work)(e)))?;
        // looked at after all of ours is there: whoever comes later sees it and moves it away whole
        let seen = fences(volume)?;
        if let Some(newer) = seen.iter().map(|(n, _)| *n).filter(|n| *n > number).max() {
            // slept since listing: what we made late is nobody's
            let _ = volume.remove_dir(&work).and_then(|()| volume.remove_dir(&layout::fence(number)));
            return Err(CheckpointError::FencedOff { fence: number, by: Some(newer) });
        }
        for (older, _) in seen.into_iter().filter(|(n, held)| *held && *n < number) {
            fence_off(volume, older)?;
        }
        for folder in [&layout::fence(number), FENCES] {
            sync(volume, folder).map_err(|e| fence.explain(volume, e))?;
        }
        Ok(fence)
    }

    /// Its number: higher is newer.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is still held.
    ///
    /// # Errors
    /// `FencedOff` if not; or if the volume refuses.
    pub fn check(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        let work = self.work();
        match volume.list(&work) {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let by = fences(volume)?.into_iter().map(|(n, _)| n).filter(|n| *n > self.number).max();
                Err(CheckpointError::FencedOff { fence: self.number, by })
            }
            Err(e) => Err(on(volume, "list", &work)(e)),
        }
    }

    /// Removes what unfinished saves and prunes left in it.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume refuses.
    pub fn clear(&self, volume: &dyn Volume) -> Result<(), CheckpointError> {
        empty(volume, &self.work()).map_err(|e| self.explain(volume, e))
    }

    /// Replaces the small file `name` of the job's own folder: whole or not at all, and only while the fence is held.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume refuses.
    pub fn publish(&self, volume: &dyn Volume, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let aside = format!("{}/{name}", self.work());
        let write = || {
            gone(volume.remove_file(&aside)).map_err(on(volume, "remove", &aside))?;
            write_file(volume, &aside, bytes)?;
            volume.rename(&aside, name).map_err(on(volume, "write", name))?;
            sync(volume, "")
        };
        write().map_err(|e| self.explain(volume, e))
    }

    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// The folder for what is unfinished: gone, by this path, once a newer group has taken a fence.
    pub fn work(&self) -> String {
        format!("{}/{}", layout::fence(self.number), self.holder)
    }

    /// Says `FencedOff` where something is missing because of that.
    pub(crate) fn explain(&self, volume: &dyn Volume, error: CheckpointError) -> CheckpointError {
        match error.is_not_found() {
            true => self.check(volume).err().unwrap_or(error),
            false => error,
        }
    }
}

/// Removes what fenced-off groups left. Run it when there is time: it may be many gigabytes.
///
/// # Errors
/// If the volume refuses.
pub fn sweep(volume: &dyn Volume) -> Result<(), CheckpointError> {
    for entry in volume.list(FENCES).map_err(on(volume, "list", FENCES))? {
        if layout::fence_of(&entry.name).is_some_and(|(_, held)| !held) {
            match sweep_one(volume, &format!("{FENCES}/{}", entry.name)) {
                Err(e) if e.is_not_found() => {} // another group sweeps too
                swept => swept?,
            }
        }
    }
    Ok(())
}

fn sweep_one(volume: &dyn Volume, fenced: &str) -> Result<(), CheckpointError> {
    for holder in volume.list(fenced).map_err(on(volume, "list", fenced))?.iter().filter(|e| e.is_dir) {
        empty(volume, &format!("{fenced}/{}", holder.name))?;
    }
    remove_tree(volume, fenced).map_err(on(volume, "remove", fenced))
}

/// Syncs a folder's entries.
pub(crate) fn sync(volume: &dyn Volume, folder: &str) -> Result<(), CheckpointError> {
    volume.sync_dir(folder).map_err(on(volume, "sync", folder))
}

/// Moves a checkpoint that `work` holds for setting aside to where it is kept, under a free name; says where.
pub(crate) fn put_aside(volume: &dyn Volume, held: &str, step: u64) -> Result<String, CheckpointError> {
    ensure_dir(volume, DAMAGED).map_err(on(volume, "create", DAMAGED))?;
    let mut to = format!("{DAMAGED}/{}", layout::step_name(step));
    for again in 2.. {
        match move_dir(volume, held, &to) {
            Err(e) if is_taken(&e) => to = format!("{DAMAGED}/{}.{again}", layout::step_name(step)),
            moved => {
                moved.map_err(on(volume, "set aside", held))?;
                break;
            }
        }
    }
    sync(volume, DAMAGED)?;
    Ok(to)
}

/// The name under which a fence holds a checkpoint on its way to `damaged/`.
pub(crate) fn held_name(step: u64) -> String {
    format!("damaged-{}", layout::step_name(step))
}

/// Empties a holder's folder. What was on its way to `damaged/` still gets there.
fn empty(volume: &dyn Volume, work: &str) -> Result<(), CheckpointError> {
    for entry in volume.list(work).map_err(on(volume, "list", work))? {
        let path = format!("{work}/{}", entry.name);
        match entry.name.strip_prefix("damaged-").and_then(layout::step_of) {
            Some(step) => drop(put_aside(volume, &path, step)?),
            None if entry.is_dir => remove_tree(volume, &path).map_err(on(volume, "remove", &path))?,
            None => volume.remove_file(&path).map_err(on(volume, "remove", &path))?,
        }
    }
    Ok(())
}

/// Makes `highest + 1`, which is then ours alone.
fn claim(volume: &dyn Volume) -> Result<u64, CheckpointError> {
    let mut last = None;
    for _ in 0..TRIES {
        let number = fences(volume)?.into_iter().map(|(n, _)| n).max().unwrap_or(0).saturating_add(1);
        let path = layout::fence(number);
        match volume.make_dir(&path) {
            Ok(()) => return Ok(number),
            Err(e) => {
                let raced = e.kind() == ErrorKind::AlreadyExists;
                let error = on(volume, "create", &path)(e);
                if !raced {
                    return Err(error);
                }
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or(CheckpointError::FencedOff { fence: 0, by: None }))
}

fn fence_off(volume: &dyn Volume, number: u64) -> Result<(), CheckpointError> {
    let from = layout::fence(number);
    for again in 0.. {
        match volume.rename(&from, &layout::fenced(number, again)) {
            // its name was used twice: see the top
            Err(e) if is_taken(&e) => {}
            // another starter was quicker
            Err(e) if e.kind() == ErrorKind::NotFound => break,
            renamed => {
                renamed.map_err(on(volume, "fence off", &from))?;
                break;
            }
        }
    }
    Ok(())
}

/// All fences by number, and whether each is held.
fn fences(volume: &dyn Volume) -> Result<Vec<(u64, bool)>, CheckpointError> {
    let entries = match volume.list(FENCES) {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(on(volume, "list", FENCES))?,
    };
    Ok(entries.iter().filter_map(|entry| layout::fence_of(&entry.name)).collect())
}

/// Whether a rename failed because its target is there.
pub(crate) fn is_taken(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty)
}
