//! Where training goes on: stage 0 takes the fence, then chooses the newest intact checkpoint of this very job.

use serde_json::Value;
use stagecoach_checkpoint::{
    CheckpointError, Depth, Fence, Found, Volume, differences, newest, open, set_aside, sweep,
};

use crate::execute::Stage;
use crate::fatal::Fatal;
use crate::plan::{Plan, Progress};
use crate::state;

/// What stage 0 chose.
pub(super) struct Chosen {
    pub(super) fence: Fence,
    pub(super) progress: Progress,
    /// What a person should know, in sentences.
    pub(super) notes: Vec<String>,
}

/// Takes the next fence of the job on `volume`, and only then looks for a checkpoint. Damaged ones are set aside.
///
/// # Errors
/// If there are checkpoints and none is intact, or the newest one is of another identity; or if the volume refuses.
pub(super) fn choose(volume: &dyn Volume, identity: &Value) -> Result<Chosen, Fatal> {
    let fence = Fence::take(volume)?;
    // every byte, also of tensors that other stages will read: damage found later would cost the whole group its start
    let Found { loaded, damage, foreign } = newest(volume, Depth::Contents, &[])?;
    let mut notes: Vec<String> = foreign.iter().map(ToString::to_string).collect();
    if let Err(error) = sweep(volume) {
        notes.push(format!("could not remove what older groups left: {error}"));
    }
    notes.extend(set_aside(volume, &fence, &damage)?.iter().map(ToString::to_string));
    let Some(loaded) = loaded else {
        return Ok(Chosen { fence, progress: Progress::default(), notes });
    };
    let about = &loaded.manifest().about;
    let differences: Vec<String> = differences(identity, &about.identity).iter().map(ToString::to_string).collect();
    if !differences.is_empty() {
        return Err(Fatal::invalid(format!(
            "the checkpoints in {} are another job's: {}; set spec.storage.path to another folder, or start over with --fresh",
            volume.display("").display(),
            differences.join(", ")
        )));
    }
    let progress: Progress = serde_json::from_value(about.progress.clone())
        .map_err(|e| Fatal::storage("understand the progress in", loaded.folder().as_ref(), e))?;
    notes.push(format!("going on after step {}, from its checkpoint", progress.step));
    Ok(Chosen { fence, progress, notes })
}

/// Fills `stage` from the checkpoint that the plan goes on from, if there is one.
///
/// # Errors
/// Damage, or if the volume refuses.
pub(super) fn load(volume: &dyn Volume, plan: &Plan, stage: &mut Stage) -> Result<(), CheckpointError> {
    match plan.progress.step {
        0 => Ok(()),
        step => state::load_checkpoint(&open(volume, step)?, stage, plan.progress.updates),
    }
}
