//! Imports a model directory's weights as a checkpoint of step 0 without optimizer state.

use ::safetensors::Dtype;
use serde_json::Value;

use super::ModelFiles;
use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::load::list;
use crate::manifest::{CheckpointMetadata, Manifest};
use crate::paths::CHECKPOINTS_DIR;
use crate::safetensors::{LazyTensor, TensorReader};
use crate::save::PendingCheckpoint;
use crate::volume::Volume;

/// The identity of an imported checkpoint. The identity matches no job, so that no job resumes from the checkpoint.
const IMPORTED_IDENTITY: &str = "imported";

/// Commits the first checkpoint on `volume`. The checkpoint holds the tensors `names` of `model`, as fp32, and
/// `small_files` (name and content). The function replaces the identity in `metadata` with an identity that matches no
/// job.
///
/// # Errors
/// Returns an error if the volume already has checkpoints, if a tensor can't be read or has an unsupported type, or if
/// the volume fails. On an error, no checkpoint is committed.
pub fn import(
    volume: &dyn Volume,
    model: &ModelFiles,
    names: &[String],
    metadata: CheckpointMetadata,
    small_files: &[(String, Vec<u8>)],
) -> Result<Manifest, CheckpointError> {
    if let Some(step) = list(volume)?.steps.first() {
        let problem = format!("has checkpoints already, up to step {step}: import into another folder");
        return Err(CheckpointError::Content { path: volume.display(CHECKPOINTS_DIR), problem });
    }
    let fence = Fence::acquire(volume)?;
    let metadata = CheckpointMetadata { identity: Value::from(IMPORTED_IDENTITY), ..metadata };
    let pending = fence.pending_checkpoint(0);
    pending.begin(volume, &metadata.identity)?;
    write(volume, &pending, model, names, metadata, small_files).inspect_err(|_| {
        let _ = fence.remove_unfinished(volume);
    })
}

fn write(
    volume: &dyn Volume,
    pending: &PendingCheckpoint,
    model: &ModelFiles,
    names: &[String],
    metadata: CheckpointMetadata,
    small_files: &[(String, Vec<u8>)],
) -> Result<Manifest, CheckpointError> {
    let read = |name: &str| model.read_f32(name);
    let reader = TensorReader::new(&read);
    let views = names.iter().map(|name| {
        let tensor = model.tensor(name).ok_or_else(|| model.missing_tensor_error(name))?;
        Ok(reader.view(name, Dtype::F32, &tensor.shape))
    });
    let views: Vec<(String, LazyTensor)> = views.collect::<Result<_, CheckpointError>>()?;
    let none: [(String, LazyTensor); 0] = [];
    let stage = reader.finish(pending.write_stage(volume, 0, &views, &none))?;
    pending.commit(volume, metadata, &[stage], small_files)
}
