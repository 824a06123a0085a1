//! Moves damaged checkpoints into the folder `damaged/`, and defines the names that they have during the move.

use crate::error::CheckpointError;
use crate::paths::{self, DAMAGED_DIR};
use crate::volume::{Volume, ensure_dir, io_error_on, rename_idempotent, sync_dir, target_exists};

/// Moves the damaged checkpoint `from` into `damaged/` under an unused name. Returns the new path.
pub(crate) fn move_to_damaged(volume: &dyn Volume, from: &str, step: u64) -> Result<String, CheckpointError> {
    ensure_dir(volume, DAMAGED_DIR).map_err(io_error_on(volume, "create", DAMAGED_DIR))?;
    let mut to = format!("{DAMAGED_DIR}/{}", paths::step_dir_name(step));
    for again in 2.. {
        match rename_idempotent(volume, from, &to) {
            Err(e) if target_exists(&e) => to = format!("{DAMAGED_DIR}/{}.{again}", paths::step_dir_name(step)),
            moved => {
                moved.map_err(io_error_on(volume, "set aside", from))?;
                break;
            }
        }
    }
    sync_dir(volume, DAMAGED_DIR)?;
    Ok(to)
}

/// Returns the name that a damaged checkpoint has in a fence's folder while a group moves the checkpoint to `damaged/`.
pub(crate) fn damaged_entry_name(step: u64) -> String {
    format!("damaged-{}", paths::step_dir_name(step))
}

/// Returns the step in a [`damaged_entry_name`], or `None` if the name has another form.
pub(crate) fn parse_damaged_entry_name(name: &str) -> Option<u64> {
    name.strip_prefix("damaged-").and_then(paths::parse_step_dir_name)
}
