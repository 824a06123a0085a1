//! The tensors of a replayed step, of all stages together.

use std::path::Path;

use anyhow::{Context, bail};
use tch::Tensor;

/// The tensors of `step` in the stages' files in `folder`, by name. The result does not depend on the assignment of
/// layers to stages.
///
/// # Errors
/// If a file can't be read, or the dump has no tensor of the step.
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
            "no tensor of the step is called so: there are layer.N.output and layer.N.output.gradient for every layer, \
             norm.output, norm.output.gradient, and WEIGHT.value and WEIGHT.gradient for every weight in the checkpoint"
        );
    }
    Ok(tensors)
}
