//! Weights and moments from files into a stage. Both are found by their global names, so a stage takes what it holds,
//! whoever wrote it.

use stagecoach_checkpoint::{CheckpointError, CheckpointReader, Dtype, TensorEntry};
use tch::{Device, Kind, Tensor};

use super::{FIRST_MOMENT, SECOND_MOMENT};
use crate::execute::Stage;
use crate::model::ParameterSpec;

/// Fills `stage`'s weights and moments from a checkpoint; every byte is verified by its hash.
///
/// # Errors
/// Damage, and a tensor that is missing or has another shape or dtype.
pub fn load_checkpoint(loaded: &CheckpointReader, stage: &mut Stage, updates: u64) -> Result<(), CheckpointError> {
    for (index, parameter) in stage.parameters.iter().enumerate() {
        let moments = stage.optimizer.moments(index);
        let parts = [("", &parameter.value), (FIRST_MOMENT, &moments.exp_avg), (SECOND_MOMENT, &moments.exp_avg_sq)];
        for (suffix, tensor) in parts {
            let name = format!("{}{suffix}", parameter.spec.name);
            read(loaded, find(loaded, &name, &parameter.spec)?, tensor)?;
        }
    }
    stage.optimizer.set_updates(updates);
    Ok(())
}

/// Reads a tensor to where it belongs, without a copy between where that is the CPU.
pub(super) fn read(loaded: &CheckpointReader, entry: &TensorEntry, tensor: &Tensor) -> Result<(), CheckpointError> {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        fill(tensor, &loaded.read(entry)?);
        return Ok(());
    }
    let size = tensor.numel() * size_of::<f32>();
    // SAFETY: contiguous fp32 on the CPU, of this size; nobody computes before all is loaded.
    let bytes = unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), size) };
    loaded.read_into(entry, bytes)
}

/// The tensor `name`, which has the form of the parameter `spec`.
pub(super) fn find<'l>(
    loaded: &'l CheckpointReader,
    name: &str,
    spec: &ParameterSpec,
) -> Result<&'l TensorEntry, CheckpointError> {
    let wrong = |problem: String| CheckpointError::Content { path: loaded.folder().into(), problem };
    let entry = loaded.tensor(name);
    let entry =
        entry.ok_or_else(|| wrong(format!("has no tensor {name}, which this model has: it is another model's")))?;
    if entry.dtype == Dtype::F32 && entry.shape.iter().map(|&dim| dim as i64).eq(spec.shape.iter().copied()) {
        return Ok(entry);
    }
    Err(wrong(format!("has {name} as {:?}{:?}, the model as F32{:?}", entry.dtype, entry.shape, spec.shape)))
}

/// Copies little-endian fp32 values into a tensor of their number.
pub(super) fn fill(tensor: &Tensor, bytes: &[u8]) {
    let values = Tensor::from_data_size(bytes, &tensor.size(), Kind::Float);
    tch::no_grad(|| tensor.shallow_clone().copy_(&values));
}
