//! The dumped tensors of a replayed step. Each stage writes one file, and [`read_dump`] combines the files of all
//! stages.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{Stage, TensorDump};
use tch::Tensor;

/// Returns the path of the file with a stage's tensors of a step.
fn dump_file(folder: &Path, step: u64, stage: usize) -> PathBuf {
    folder.join(format!("step-{step}.stage-{stage}.safetensors"))
}

/// Ends the dump of a step. Writes the dumped tensors to the file of this stage, if there are any.
///
/// # Errors
/// Returns an error if the file can't be written.
pub fn write_dump(dump: &TensorDump, stage: &Stage, step: u64) -> Result<(), StageError> {
    let tensors = dump.end(stage);
    if tensors.is_empty() {
        return Ok(());
    }
    let path = dump_file(&dump.config.folder, step, stage.index);
    Tensor::write_safetensors(&tensors, &path).map_err(|error| StageError::storage("write", &path, error))
}

/// Reads the tensors of `step` from the stages' files in `folder`, sorted by name. The result does not depend on the
/// assignment of layers to stages.
///
/// # Errors
/// Returns an error if a file can't be read, or the dump has no tensor of the step.
pub(super) fn read_dump(folder: &Path, step: u64) -> anyhow::Result<Vec<(String, Tensor)>> {
    let mut tensors = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(&format!("step-{step}.")) {
            continue;
        }
        let path = entry.path();
        tensors.extend(Tensor::read_safetensors(&path).with_context(|| format!("could not read {}", path.display()))?);
    }
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    if tensors.is_empty() {
        bail!(
            "no tensor of the step matches --dump: available are layer.N.output and layer.N.output.gradient for every layer, \
             norm.output, norm.output.gradient, and WEIGHT.value and WEIGHT.gradient for every weight in the checkpoint"
        );
    }
    Ok(tensors)
}
