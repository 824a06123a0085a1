//! Verifies every byte of a checkpoint and reports a result for each file. Unlike a resume, the verification continues
//! after it finds damage.

use std::collections::HashSet;

use crate::error::CheckpointError;
use crate::manifest::FileEntry;
use crate::reader::{open_file, open_files};
use crate::volume::Volume;

/// A progress event of [`verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyEvent<'a> {
    /// The number of bytes that were read since the last event.
    BytesRead(u64),
    /// The entry of a checked file, and its damage if the file is damaged. The text of the damage continues a sentence
    /// that begins with the file's name.
    FileChecked(&'a FileEntry, Option<String>),
}

/// Compares every file of a checkpoint with the manifest. Returns true if all files are intact.
///
/// # Errors
/// Returns [`CheckpointError::Damaged`] if the manifest can't be used, or another error if the volume fails.
pub fn verify(volume: &dyn Volume, step: u64, on_event: &mut dyn FnMut(VerifyEvent)) -> Result<bool, CheckpointError> {
    // each file is opened on its own, so that a missing file does not end the verification
    let checkpoint = open_files(volume, step, Some(&HashSet::new()))?;
    let mut intact = true;
    for entry in &checkpoint.manifest().files {
        let on_read = &mut |bytes| on_event(VerifyEvent::BytesRead(bytes));
        let verified = open_file(volume, step, entry).and_then(|file| checkpoint.verify_file(&*file, entry, on_read));
        let damage = match verified {
            Ok(()) => None,
            Err(CheckpointError::Damaged(damage)) => Some(damage.reason),
            Err(error) => return Err(error),
        };
        intact &= damage.is_none();
        on_event(VerifyEvent::FileChecked(entry, damage));
    }
    Ok(intact)
}
