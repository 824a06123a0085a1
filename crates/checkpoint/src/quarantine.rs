//! Moves damaged checkpoints to `damaged/`, and adds a file with the reason to each of them.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use crate::damaged::{damaged_entry_name, move_to_damaged};
use crate::error::{CheckpointError, Damage, Warning};
use crate::fence::Fence;
use crate::paths::{self, CHECKPOINTS_DIR, REASON_FILE};
use crate::safetensors::write_file;
use crate::volume::{Volume, io_error_on, rename_idempotent, sync_dir};

/// Moves each damaged checkpoint into the folder of `fence` (the group's right to change checkpoints), and from there
/// to `damaged/`. The first move fails if the group has lost the fence, so that a fenced-off group can't move a newer
/// group's checkpoint. Returns a warning for each damage.
///
/// # Errors
/// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
pub fn quarantine(volume: &dyn Volume, fence: &Fence, damage: &[Damage]) -> Result<Vec<Warning>, CheckpointError> {
    let mut steps: BTreeMap<u64, Vec<&Damage>> = BTreeMap::new();
    for one in damage {
        steps.entry(one.step).or_default().push(one);
    }
    let mut warnings = Vec::new();
    for (step, damage) in steps {
        let from = paths::checkpoint_path(step);
        let entry = format!("{}/{}", fence.work_dir(), damaged_entry_name(step));
        // The file with the reason is written in the fence's folder and moved into the checkpoint's folder. If the file
        // were created in the checkpoint's folder, a group that has lost the fence could still write to it. Errors of
        // the write are ignored, because a full disk must not prevent the move of the checkpoint.
        let reason = format!("{}/{}.{REASON_FILE}", fence.work_dir(), paths::step_dir_name(step));
        let reasons: String = damage.iter().map(|d| format!("{d}\n")).collect();
        let _ = write_file(volume, &reason, reasons.as_bytes());
        if let Err(error) = rename_idempotent(volume, &from, &entry) {
            let missing = error.kind() == ErrorKind::NotFound;
            match fence.or_fenced_off(volume, io_error_on(volume, "set aside", &from)(error)) {
                CheckpointError::Io { .. } if missing => continue, // another process removed the checkpoint
                error => return Err(error),
            }
        }
        let _ = volume.rename(&reason, &format!("{entry}/{REASON_FILE}"));
        let to = move_to_damaged(volume, &entry, step).map_err(|e| fence.or_fenced_off(volume, e))?;
        sync_dir(volume, CHECKPOINTS_DIR)?;
        warnings.extend(
            damage.into_iter().map(|d| Warning {
                path: d.file.clone(),
                reason: format!("{}: the checkpoint is now in {to}", d.reason),
            }),
        );
    }
    Ok(warnings)
}
