//! The tensors for which a stage is responsible: its weights, and the optimizer's moments.

use stagecoach_kernels::bytes_of;
use stagecoach_kernels::device::{CudaError, HostTensor};
use tch::{Device, Tensor};

use super::TensorHash;
use crate::execute::Stage;

/// The suffix of a weight's name for the running average of its gradient.
pub(crate) const FIRST_MOMENT: &str = ".exp_avg";
/// The suffix of a weight's name for the running average of its gradient's square.
pub(crate) const SECOND_MOMENT: &str = ".exp_avg_sq";

/// A contiguous fp32 tensor on the CPU, with its global name.
#[derive(Debug)]
pub struct NamedTensor {
    /// Hugging Face's name; with the suffix `FIRST_MOMENT` or `SECOND_MOMENT` for a moment.
    pub name: String,
    shape: Vec<usize>,
    tensor: HostTensor,
}

/// Returns the hashes of the weights for which `stage` is responsible. The function copies the weights of a GPU one by
/// one, so that the host holds one weight at a time.
pub fn weight_hashes(stage: &Stage) -> Vec<TensorHash> {
    named_weights(stage).iter().map(|weight| NamedTensor::of(weight).hash()).collect()
}

/// A tensor of a stage, on the stage's device, with its global name.
pub(super) type StageTensor<'a> = (String, &'a Tensor);

/// Returns the weights for which `stage` is responsible. The stage with the head is responsible for a tied weight.
pub(super) fn named_weights(stage: &Stage) -> Vec<StageTensor<'_>> {
    own_parameters(stage).map(|p| (stage.parameters[p].spec.name.clone(), &stage.parameters[p].value)).collect()
}

/// Returns the moments of the weights for which `stage` is responsible.
pub(super) fn named_moments(stage: &Stage) -> Vec<StageTensor<'_>> {
    own_parameters(stage)
        .filter_map(|p| Some((&stage.parameters[p].spec.name, stage.optimizer.moments(p)?)))
        .flat_map(|(name, moments)| {
            [
                (format!("{name}{FIRST_MOMENT}"), &moments.exp_avg),
                (format!("{name}{SECOND_MOMENT}"), &moments.exp_avg_sq),
            ]
        })
        .collect()
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|d| d as usize).collect()
}

fn own_parameters(stage: &Stage) -> impl Iterator<Item = usize> {
    (0..stage.parameters.len()).filter(|&p| stage.is_responsible_for(p))
}

impl NamedTensor {
    /// Returns the tensor itself if it is on the CPU, otherwise a copy.
    pub(crate) fn of((name, tensor): &StageTensor) -> NamedTensor {
        let on_cpu = tensor.to_device(Device::Cpu).contiguous();
        NamedTensor { name: name.clone(), shape: shape(tensor), tensor: on_cpu.into() }
    }

    /// Allocates memory for a copy of the tensor, pinned if `stage` has a GPU.
    pub(super) fn buffer((name, tensor): &StageTensor, stage: &Stage) -> Result<NamedTensor, CudaError> {
        let memory = HostTensor::zeros(&tensor.size(), tensor.kind(), stage.gpu_context())?;
        Ok(NamedTensor { name: name.clone(), shape: shape(tensor), tensor: memory })
    }

    /// Returns the memory of a `buffer`.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the hash of the values, with the tensor's name.
    pub fn hash(&self) -> TensorHash {
        TensorHash::of(&self.name, &self.shape, self.bytes())
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the values as little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the tensor is contiguous and on the CPU by construction. No thread writes to weights while they are
        // saved.
        unsafe { &*bytes_of(&self.tensor) }
    }

    /// Returns the values of a `buffer` as mutable bytes. A plain memory copy into these bytes takes a third of the
    /// time of torch's `copy_`.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the tensor is contiguous and on the CPU by construction. A buffer has the only reference to its
        // tensor.
        unsafe { &mut *bytes_of(&self.tensor) }
    }
}
