//! A model directory's weights as a checkpoint: step 0, without optimizer state.

use safetensors::Dtype;
use serde_json::Value;

use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::hugging_face::ModelFiles;
use crate::layout::CHECKPOINTS;
use crate::lazy::{Lazy, Source};
use crate::load::list;
use crate::manifest::{About, Manifest};
use crate::save::Save;
use crate::volume::Volume;

/// The identity of an imported checkpoint: no job's, so that none takes it for its own.
const IMPORTED: &str = "imported";

/// Commits the tensors `names` of `model`, as fp32, and `small_files` (name and content) as the first checkpoint of the
/// job on `volume`. The identity in `about` is replaced by one that is no job's.
///
/// # Errors
/// If there are checkpoints already; a tensor that can't be read or isn't of a floating-point type; or if the volume
/// refuses. Nothing is committed then.
pub fn import(
    volume: &dyn Volume,
    model: &ModelFiles,
    names: &[String],
    about: About,
    small_files: &[(String, Vec<u8>)],
) -> Result<Manifest, CheckpointError> {
    if let Some(step) = list(volume)?.steps.first() {
        let problem = format!("has checkpoints already, up to step {step}: import into another folder");
        return Err(CheckpointError::Content { path: volume.display(CHECKPOINTS), problem });
    }
    let fence = Fence::take(volume)?;
    let about = About { identity: Value::from(IMPORTED), ..about };
    let save = fence.save(0);
    save.begin(volume, &about.identity)?;
    write(volume, &save, model, names, about, small_files).inspect_err(|_| {
        let _ = fence.clear(volume);
    })
}

fn write(
    volume: &dyn Volume,
    save: &Save,
    model: &ModelFiles,
    names: &[String],
    about: About,
    small_files: &[(String, Vec<u8>)],
) -> Result<Manifest, CheckpointError> {
    let read = |name: &str| model.read_f32(name);
    let source = Source::new(&read);
    let views = names.iter().map(|name| {
        let tensor = model.tensor(name).ok_or_else(|| model.lacks(name))?;
        Ok(source.view(name, Dtype::F32, &tensor.shape))
    });
    let views: Vec<(String, Lazy)> = views.collect::<Result<_, CheckpointError>>()?;
    let none: [(String, Lazy); 0] = [];
    let stage = source.outcome(save.write_stage(volume, 0, &views, &none))?;
    save.commit(volume, about, &[stage], small_files)
}
