//! Moves damaged checkpoints into the folder `damaged/`, and defines the names that they have during the move.

use std::io::ErrorKind;

use crate::error::CheckpointError;
use crate::paths::{self, DAMAGED_DIR};
use crate::volume::{Volume, ensure_dir, io_error_on, rename_idempotent, sync_dir, target_exists};

/// Moves the damaged checkpoint `from` into `damaged/` under an unused name. Returns the new path.
pub(crate) fn move_to_damaged(volume: &dyn Volume, from: &str, step: u64) -> Result<String, CheckpointError> {
    ensure_dir(volume, DAMAGED_DIR).map_err(io_error_on(volume, "create", DAMAGED_DIR))?;
    let used = volume.list(DAMAGED_DIR).map_err(io_error_on(volume, "set aside", from))?;
    let mut name = paths::step_dir_name(step);
    for again in 2.. {
        // the rename must not find another damaged checkpoint of this step: if `from` is gone because the group has lost
        // the fence, the rename would take that checkpoint for the result of an earlier, repeated call
        let moved = match used.iter().any(|entry| entry.name == name) {
            true => Err(ErrorKind::AlreadyExists.into()),
            false => rename_idempotent(volume, from, &format!("{DAMAGED_DIR}/{name}")),
        };
        match moved {
            Err(e) if target_exists(&e) => name = format!("{}.{again}", paths::step_dir_name(step)),
            moved => {
                moved.map_err(io_error_on(volume, "set aside", from))?;
                break;
            }
        }
    }
    sync_dir(volume, DAMAGED_DIR)?;
    Ok(format!("{DAMAGED_DIR}/{name}"))
}

/// Returns the name that a damaged checkpoint has in a fence's folder while a group moves the checkpoint to `damaged/`.
pub(crate) fn damaged_entry_name(step: u64) -> String {
    format!("damaged-{}", paths::step_dir_name(step))
}

/// Returns the step in a [`damaged_entry_name`], or `None` if the name has another form.
pub(crate) fn parse_damaged_entry_name(name: &str) -> Option<u64> {
    name.strip_prefix("damaged-").and_then(paths::parse_step_dir_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::FileSystemVolume;

    #[test]
    fn a_checkpoint_that_another_group_has_moved_is_not_found_under_an_older_name() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        for name in ["damaged/step-00000003", "held", "held/again"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        assert_eq!(move_to_damaged(&volume, "held/again", 3).unwrap(), "damaged/step-00000003.2");
        let error = move_to_damaged(&volume, "held/again", 3).unwrap_err().to_string();
        assert!(error.contains("set aside"), "{error}");
    }
}
