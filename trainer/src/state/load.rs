//! Weights and moments from files into a stage. Both are found by their global names, so a stage takes what it holds,
//! whoever wrote it.

use stagecoach_checkpoint::{CheckpointError, Dtype, Loaded};
use tch::{Kind, Tensor};

use super::{FIRST_MOMENT, SECOND_MOMENT};
use crate::execute::Stage;
use crate::model::ParameterSpec;

/// Fills `stage`'s weights and moments from a checkpoint; every byte is proven by its hash.
///
/// # Errors
/// Damage, and a tensor that is missing or has another shape or dtype.
pub fn load_checkpoint(loaded: &Loaded, stage: &mut Stage, updates: u64) -> Result<(), CheckpointError> {
    let wrong = |problem: String| CheckpointError::Content { path: loaded.folder().into(), problem };
    for (index, parameter) in stage.parameters.iter().enumerate() {
        let moments = stage.optimizer.moments(index);
        let parts = [("", &parameter.value), (FIRST_MOMENT, &moments.exp_avg), (SECOND_MOMENT, &moments.exp_avg_sq)];
        for (suffix, tensor) in parts {
            let name = format!("{}{suffix}", parameter.spec.name);
            let entry = loaded
                .tensor(&name)
                .ok_or_else(|| wrong(format!("has no tensor {name}, which this model has: it is another model's")))?;
            fits(&name, entry.dtype, &entry.shape, &parameter.spec).map_err(wrong)?;
            fill(tensor, &loaded.read(entry)?);
        }
    }
    stage.optimizer.set_updates(updates);
    Ok(())
}

fn fits(name: &str, dtype: Dtype, shape: &[usize], spec: &ParameterSpec) -> Result<(), String> {
    let found: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
    if found == spec.shape && dtype == Dtype::F32 {
        return Ok(());
    }
    Err(format!("{name} is {dtype:?}{found:?} there, the model has F32{:?}", spec.shape))
}

/// Copies little-endian fp32 values into a tensor of their number.
pub(super) fn fill(tensor: &Tensor, bytes: &[u8]) {
    let values = Tensor::from_data_size(bytes, &tensor.size(), Kind::Float);
    tch::no_grad(|| tensor.shallow_clone().copy_(&values));
}
