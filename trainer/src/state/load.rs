//! Weights from a Hugging Face model directory into a stage.

use std::collections::HashSet;
use std::path::Path;

use safetensors::Dtype;
use stagecoach_checkpoint::{CheckpointError, read_shards};
use tch::Tensor;

use crate::execute::Stage;

/// Fills `stage`'s parameters from the shards in `folder`.
///
/// # Errors
/// A parameter that is missing, or has another shape or dtype, by name with both.
pub fn load_model(folder: &Path, stage: &Stage) -> Result<(), CheckpointError> {
    let wrong = |problem: String| CheckpointError::Content { path: folder.to_owned(), problem };
    let mut missing: HashSet<&str> = stage.parameters.iter().map(|p| p.spec.name.as_str()).collect();
    read_shards(folder, |name, view| {
        let Some(index) = stage.parameters.find(name) else { return Ok(()) };
        let parameter = &stage.parameters[index];
        let shape: Vec<i64> = view.shape().iter().map(|&d| d as i64).collect();
        if shape != parameter.spec.shape || view.dtype() != Dtype::F32 {
            return Err(wrong(format!(
                "{name} is {:?}{shape:?}, the model has F32{:?}",
                view.dtype(),
                parameter.spec.shape
            )));
        }
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        tch::no_grad(|| parameter.value.shallow_clone().copy_(&Tensor::from_slice(&values).view(shape.as_slice())));
        missing.remove(name);
        Ok(())
    })?;
    match missing.into_iter().min() {
        Some(name) => Err(wrong(format!("has no tensor {name}: it is another model's"))),
        None => Ok(()),
    }
}
