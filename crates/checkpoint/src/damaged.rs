//! The folder `damaged/`, and the names of checkpoints on their way there.

use crate::error::CheckpointError;
use crate::paths::{self, DAMAGED_DIR};
use crate::volume::{Volume, ensure_dir, rename_idempotent, sync_dir, target_exists, volume_io};

/// Moves the damaged checkpoint `from` into `damaged/` under a free name. Returns the new path.
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

/// The name that a checkpoint has in a fence's folder while it is being moved to `damaged/`.
pub(crate) fn damaged_entry_name(step: u64) -> String {
    format!("damaged-{}", paths::step_dir_name(step))
}

/// The step in a [`damaged_entry_name`]; `None` if the name has another form.
pub(crate) fn parse_damaged_entry_name(name: &str) -> Option<u64> {
    name.strip_prefix("damaged-").and_then(paths::parse_step_dir_name)
}
