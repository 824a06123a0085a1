//! Finds the newest intact checkpoint and opens it.

use std::collections::HashSet;
use std::io::ErrorKind;

use crate::error::{CheckpointError, Damage, Warning};
use crate::paths::{self, CHECKPOINTS_DIR};
use crate::reader::{CheckpointReader, open_files};
use crate::volume::{Volume, list_or_none};

/// The entries of `checkpoints/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The steps of the committed checkpoints, newest first. Their contents are not checked.
    pub steps: Vec<u64>,
    /// The steps for which a symbolic link exists in place of the checkpoint's folder, newest first. This crate loads
    /// no checkpoint through a link.
    pub links: Vec<u64>,
    /// A warning for each entry that is not a checkpoint. This crate does not change such entries.
    pub foreign: Vec<Warning>,
}

/// The parts of a checkpoint that a check covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyLevel {
    /// The manifest and the size of every file. Damaged content is detected only when a tensor is read.
    Sizes,
    /// The manifest, and the size and hash of every file.
    Contents,
}

/// The newest intact checkpoint, and the damage of the skipped checkpoints.
#[derive(Debug)]
#[non_exhaustive]
pub struct NewestCheckpoint {
    /// The checkpoint, or `None` if the volume has no checkpoint.
    pub checkpoint: Option<CheckpointReader>,
    /// The damage of newer checkpoints, for [`crate::quarantine`].
    pub damage: Vec<Damage>,
    /// A warning for each entry that is not a checkpoint. This crate does not change such entries.
    pub foreign: Vec<Warning>,
}

/// Lists the entries of `checkpoints/`.
///
/// # Errors
/// Returns an error if the volume fails. A missing folder of checkpoints is not an error.
pub fn list(volume: &dyn Volume) -> Result<Listing, CheckpointError> {
    let entries = list_or_none(volume, CHECKPOINTS_DIR)?;
    let mut listing = Listing::default();
    for entry in entries.into_iter().filter(|entry| paths::parse_probe_dir_name(&entry.name).is_none()) {
        let reason = match (paths::parse_step_dir_name(&entry.name), entry.is_dir) {
            (Some(step), true) => {
                listing.steps.push(step);
                continue;
            }
            // opening a file succeeds, but opening a link to a folder or a dangling link fails
            (Some(step), false) if volume.open(&paths::checkpoint_path(step)).is_err() => {
                listing.links.push(step);
                "is a link, not the folder of a checkpoint, and was left alone"
            }
            _ => "is not a checkpoint of this job and was not changed",
        };
        listing.foreign.push(Warning { path: format!("{CHECKPOINTS_DIR}/{}", entry.name), reason: reason.into() });
    }
    listing.steps.sort_unstable_by(|a, b| b.cmp(a));
    listing.links.sort_unstable_by(|a, b| b.cmp(a));
    Ok(listing)
}

/// Opens the newest checkpoint that is intact at `level` and is not in `known_damage`, the list of the damage that
/// stages found while they read tensors. This function does not change the volume. The caller passes the damage to
/// [`crate::quarantine`] only after it has loaded an older checkpoint. If the caller can load no checkpoint, it
/// therefore moves none, and the next start also gets `NoneIntact`.
///
/// # Errors
/// Returns [`CheckpointError::NoneIntact`] if there are checkpoints but none can be used. Returns
/// [`CheckpointError::StepIsLink`] if a link has the name of a step that is newer than all checkpoints, or another
/// error if the volume fails.
pub fn open_newest(
    volume: &dyn Volume,
    level: VerifyLevel,
    known_damage: &[Damage],
) -> Result<NewestCheckpoint, CheckpointError> {
    let Listing { steps, links, foreign } = list(volume)?;
    if let Some(&step) = links.first().filter(|newest| steps.first().is_none_or(|step| step < newest)) {
        return Err(CheckpointError::StepIsLink { path: volume.display(&paths::checkpoint_path(step)) });
    }
    let mut damage = Vec::new();
    for step in steps {
        if let Some(damaged) = known_damage.iter().find(|d| d.step == step) {
            damage.push(damaged.clone());
            continue;
        }
        match open_at(volume, step, level) {
            Ok(checkpoint) => return Ok(NewestCheckpoint { checkpoint: Some(checkpoint), damage, foreign }),
            Err(CheckpointError::Damaged(found)) => {
                if volume.list(&paths::checkpoint_path(step)).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                    return open_newest(volume, level, known_damage); // pruned: a newer checkpoint exists
                }
                damage.push(found);
            }
            Err(other) => return Err(other),
        }
    }
    match damage.is_empty() {
        true => Ok(NewestCheckpoint { checkpoint: None, damage, foreign }),
        false => Err(CheckpointError::NoneIntact { folder: volume.display(CHECKPOINTS_DIR), damage }),
    }
}

fn open_at(volume: &dyn Volume, step: u64, level: VerifyLevel) -> Result<CheckpointReader, CheckpointError> {
    let checkpoint = open(volume, step)?;
    if level == VerifyLevel::Contents {
        checkpoint.verify()?;
    }
    Ok(checkpoint)
}

/// Opens the checkpoint of `step` after checking its manifest and the size of every file.
///
/// # Errors
/// Returns [`CheckpointError::Damaged`] if a check fails, or another error if the volume fails.
pub fn open(volume: &dyn Volume, step: u64) -> Result<CheckpointReader, CheckpointError> {
    open_files(volume, step, None)
}

/// Opens only those files that hold the tensors `names`, and checks their sizes. The other files may be missing or
/// damaged.
///
/// # Errors
/// Returns the errors of [`open`].
pub fn open_tensors(
    volume: &dyn Volume,
    step: u64,
    names: &HashSet<String>,
) -> Result<CheckpointReader, CheckpointError> {
    open_files(volume, step, Some(names))
}
