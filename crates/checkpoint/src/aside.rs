//! Damaged checkpoints are kept, out of the way, with the reason.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use crate::error::{CheckpointError, Damage, Warning, on};
use crate::fence::{Fence, held_name, put_aside, sync};
use crate::layout::{self, CHECKPOINTS, REASON};
use crate::shard::write_file;
use crate::volume::{Volume, move_dir};

/// Moves each damaged checkpoint to `damaged/`, through the fence, so that a group that was fenced off since it found the
/// damage can't take away what a newer one has written in that place.
///
/// # Errors
/// `FencedOff`, or if the volume refuses.
pub fn set_aside(volume: &dyn Volume, fence: &Fence, damage: &[Damage]) -> Result<Vec<Warning>, CheckpointError> {
    let mut steps: BTreeMap<u64, Vec<&Damage>> = BTreeMap::new();
    for one in damage {
        steps.entry(one.step).or_default().push(one);
    }
    let mut warnings = Vec::new();
    for (step, damage) in steps {
        let from = layout::checkpoint(step);
        let held = format!("{}/{}", fence.work(), held_name(step));
        // written beside it and moved in: an open file would outlive the fence. A full disk must not keep the damaged
        // checkpoint in place, so whatever fails about the reason is let go.
        let reason = format!("{}/{}.{REASON}", fence.work(), layout::step_name(step));
        let reasons: String = damage.iter().map(|d| format!("{d}\n")).collect();
        let _ = write_file(volume, &reason, reasons.as_bytes());
        if let Err(error) = move_dir(volume, &from, &held) {
            let missing = error.kind() == ErrorKind::NotFound;
            match fence.explain(volume, on(volume, "set aside", &from)(error)) {
                CheckpointError::Io { .. } if missing => continue, // somebody removed it
                error => return Err(error),
            }
        }
        let _ = volume.rename(&reason, &format!("{held}/{REASON}"));
        let to = put_aside(volume, &held, step).map_err(|e| fence.explain(volume, e))?;
        sync(volume, CHECKPOINTS)?;
        warnings.extend(
            damage.into_iter().map(|d| Warning {
                path: d.file.clone(),
                reason: format!("{}: the checkpoint is now in {to}", d.reason),
            }),
        );
    }
    Ok(warnings)
}
