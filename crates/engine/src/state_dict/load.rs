//! Loads weights and moments from files into a stage. Tensors have global names, so that each stage loads its own
//! tensors from the files of any stage.

use std::collections::HashSet;

use stagecoach_checkpoint::{CheckpointError, CheckpointReader, Dtype, TensorEntry};
use stagecoach_kernels::bytes_of;
use stagecoach_model::ParameterSpec;
use tch::{Device, Kind, Tensor};

use super::Snapshot;
use super::tensors::{FIRST_MOMENT, SECOND_MOMENT};
use crate::execute::Stage;

/// The suffixes of the names of a parameter's tensors.
const SUFFIXES: [&str; 3] = ["", FIRST_MOMENT, SECOND_MOMENT];

/// Returns the names of the tensors that [`load_checkpoint`] reads from files for `stage`: the tensors of the
/// parameters that its replica owns, except the tensors in `held`.
pub fn checkpoint_tensors(stage: &Stage, held: Option<&Snapshot>) -> HashSet<String> {
    let parameter_tensors = |name: &String| SUFFIXES.map(|suffix| format!("{name}{suffix}"));
    let owned = stage.parameters.iter().enumerate().filter(|(index, _)| stage.owns(*index));
    let names = owned.flat_map(|(_, parameter)| parameter_tensors(&parameter.spec.name));
    names.filter(|name| held.is_none_or(|held| held.tensor(name).is_none())).collect()
}

/// Loads the weights and moments that the replica of `stage` owns. `held` is a copy in memory of the state at the
/// loaded step. Tensors that are not in `held` come from the checkpoint, and the function verifies them by their
/// hashes. `updates` is the number of optimizer updates up to this step. `on_read` receives the number of bytes of each
/// tensor.
///
/// # Errors
/// If a tensor is damaged or missing, or has another shape or dtype.
pub fn load_checkpoint(
    checkpoint: Option<&CheckpointReader>,
    held: Option<&Snapshot>,
    stage: &mut Stage,
    updates: u64,
    on_read: &mut dyn FnMut(u64),
) -> Result<(), CheckpointError> {
    for (index, parameter) in stage.parameters.iter().enumerate() {
        let Some(moments) = stage.optimizer.moments(index) else { continue };
        let tensors = [&parameter.value, &moments.exp_avg, &moments.exp_avg_sq];
        for (suffix, tensor) in SUFFIXES.into_iter().zip(tensors) {
            let name = format!("{}{suffix}", parameter.spec.name);
            let bytes = match (held.and_then(|held| held.tensor(&name)), checkpoint) {
                (Some(copy), _) => {
                    copy_from_bytes(tensor, copy.bytes());
                    copy.bytes().len() as u64
                }
                (None, Some(checkpoint)) => {
                    let entry = find_tensor(checkpoint, &name, &parameter.spec)?;
                    read_into(checkpoint, entry, tensor)?;
                    entry.bytes
                }
                (None, None) => {
                    return Err(CheckpointError::Content {
                        path: name.into(),
                        problem: "is not in memory, and no checkpoint is open: this is a bug".into(),
                    });
                }
            };
            on_read(bytes);
        }
    }
    stage.parameters.update_compute();
    stage.optimizer.set_updates(updates);
    Ok(())
}

/// Reads a tensor, directly into its memory if the tensor is on the CPU.
pub(super) fn read_into(
    checkpoint: &CheckpointReader,
    entry: &TensorEntry,
    tensor: &Tensor,
) -> Result<(), CheckpointError> {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        copy_from_bytes(tensor, &checkpoint.read(entry)?);
        return Ok(());
    }
    // SAFETY: the tensor is contiguous, fp32 and on the CPU, and no other thread uses it during the load.
    checkpoint.read_into(entry, unsafe { &mut *bytes_of(tensor) })
}

/// Returns the entry of the tensor `name`, which must have the shape of the parameter `spec`.
pub(super) fn find_tensor<'l>(
    checkpoint: &'l CheckpointReader,
    name: &str,
    spec: &ParameterSpec,
) -> Result<&'l TensorEntry, CheckpointError> {
    let content_error = |problem: String| CheckpointError::Content { path: checkpoint.folder().into(), problem };
    let entry = checkpoint.tensor(name);
    let entry = entry.ok_or_else(|| {
        content_error(format!("has no tensor {name}, which this model needs: the checkpoint belongs to another model"))
    })?;
    if entry.dtype == Dtype::F32 && entry.shape.iter().map(|&dim| dim as i64).eq(spec.shape.iter().copied()) {
        return Ok(entry);
    }
    Err(content_error(format!(
        "has {name} with type and shape {:?}{:?}, but the model needs F32{:?}",
        entry.dtype, entry.shape, spec.shape
    )))
}

/// Copies little-endian fp32 values into a tensor with the same number of elements.
pub(super) fn copy_from_bytes(tensor: &Tensor, bytes: &[u8]) {
    let values = Tensor::from_data_size(bytes, &tensor.size(), Kind::Float);
    tch::no_grad(|| tensor.shallow_clone().copy_(&values));
}
