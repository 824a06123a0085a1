//! Reading every byte of a checkpoint, and a verdict on each file: unlike a resume, it goes on after the first damage.

use std::io::ErrorKind;

use crate::error::{CheckpointError, on};
use crate::layout;
use crate::load::{hash, manifest, open_file};
use crate::manifest::FileEntry;
use crate::volume::Volume;

/// What [`verify`] tells while it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verifying<'a> {
    /// So many more bytes are read.
    Read(u64),
    /// A file is read to its end; what is wrong with it, as the rest of a sentence that begins with its name.
    File(&'a FileEntry, Option<String>),
}

/// Compares every file of the checkpoint with its manifest; true if all is as it was written.
///
/// # Errors
/// `Damaged` if the manifest itself can't be used; or if the volume refuses.
pub fn verify(volume: &dyn Volume, step: u64, tell: &mut dyn FnMut(Verifying)) -> Result<bool, CheckpointError> {
    let mut intact = true;
    for entry in &manifest(volume, step)?.files {
        let damage = match verify_file(volume, step, entry, tell) {
            Ok(damage) => damage,
            Err(CheckpointError::Damaged(damage)) => Some(damage.reason),
            Err(error) => return Err(error),
        };
        intact &= damage.is_none();
        tell(Verifying::File(entry, damage));
    }
    Ok(intact)
}

fn verify_file(
    volume: &dyn Volume,
    step: u64,
    entry: &FileEntry,
    tell: &mut dyn FnMut(Verifying),
) -> Result<Option<String>, CheckpointError> {
    let reader = open_file(volume, step, entry)?;
    match hash(&*reader, entry.bytes, &mut |bytes| tell(Verifying::Read(bytes))) {
        Ok(hash) if hash.to_hex().as_str() == entry.blake3 => Ok(None),
        Ok(_) => Ok(Some("holds other bytes than were written".into())),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(Some("has become shorter".into())),
        Err(e) => Err(on(volume, "read", &format!("{}/{}", layout::checkpoint(step), entry.name))(e)),
    }
}
