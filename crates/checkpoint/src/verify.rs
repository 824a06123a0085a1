//! Verifies every byte of a checkpoint and reports a result for each file. Unlike a resume, the verification continues
//! after damage.

use std::io::ErrorKind;

use crate::error::CheckpointError;
use crate::manifest::FileEntry;
use crate::paths;
use crate::reader::{hash_file, open_file, read_manifest};
use crate::volume::{Volume, io_error_on};

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
    let mut intact = true;
    for entry in &read_manifest(volume, step)?.files {
        let damage = match verify_file(volume, step, entry, on_event) {
            Ok(damage) => damage,
            Err(CheckpointError::Damaged(damage)) => Some(damage.reason),
            Err(error) => return Err(error),
        };
        intact &= damage.is_none();
        on_event(VerifyEvent::FileChecked(entry, damage));
    }
    Ok(intact)
}

fn verify_file(
    volume: &dyn Volume,
    step: u64,
    entry: &FileEntry,
    on_event: &mut dyn FnMut(VerifyEvent),
) -> Result<Option<String>, CheckpointError> {
    let reader = open_file(volume, step, entry)?;
    match hash_file(&*reader, entry.bytes, &mut |bytes| on_event(VerifyEvent::BytesRead(bytes))) {
        Ok(hash) if hash.to_hex().as_str() == entry.blake3 => Ok(None),
        Ok(_) => Ok(Some("does not hold the bytes that were written".into())),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(Some("has become shorter".into())),
        Err(e) => Err(io_error_on(volume, "read", &format!("{}/{}", paths::checkpoint_path(step), entry.name))(e)),
    }
}
