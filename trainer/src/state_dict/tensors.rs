//! The tensors for which a stage is responsible: its weights, and the optimizer's moments.

use tch::{Device, Tensor};

use crate::execute::Stage;
use crate::tensor_bytes::bytes_of;

/// Suffix of a weight's name for the running average of its gradient.
pub(crate) const FIRST_MOMENT: &str = ".exp_avg";
/// Suffix of a weight's name for the running average of its gradient's square.
pub(crate) const SECOND_MOMENT: &str = ".exp_avg_sq";

/// A contiguous fp32 tensor on the CPU, with its global name.
#[derive(Debug)]
pub(crate) struct NamedTensor {
    /// Hugging Face's name; with the suffix [`FIRST_MOMENT`] or [`SECOND_MOMENT`] for a moment.
    pub(crate) name: String,
    shape: Vec<usize>,
    tensor: Tensor,
}

/// The weights for which `stage` is responsible: for a tied one it is the stage with the head.
pub(crate) fn weights(stage: &Stage) -> Vec<NamedTensor> {
    own_parameters(stage)
        .map(|p| NamedTensor::new(&stage.parameters[p].spec.name, "", &stage.parameters[p].value))
        .collect()
}

/// The moments of these weights.
pub(super) fn moments(stage: &Stage) -> Vec<NamedTensor> {
    own_parameters(stage)
        .filter_map(|p| Some((&stage.parameters[p].spec.name, stage.optimizer.moments(p)?)))
        .flat_map(|(name, moments)| {
            [
                NamedTensor::new(name, FIRST_MOMENT, &moments.exp_avg),
                NamedTensor::new(name, SECOND_MOMENT, &moments.exp_avg_sq),
            ]
        })
        .collect()
}

fn own_parameters(stage: &Stage) -> impl Iterator<Item = usize> {
    (0..stage.parameters.len()).filter(|&p| stage.is_responsible_for(p))
}

impl NamedTensor {
    fn new(name: &str, suffix: &str, tensor: &Tensor) -> NamedTensor {
        let shape = tensor.size().into_iter().map(|d| d as usize).collect();
        NamedTensor { name: format!("{name}{suffix}"), shape, tensor: tensor.to_device(Device::Cpu).contiguous() }
    }

    /// A new tensor of the same name and shape. Its memory is written once, so that the copy into it, for which training
    /// waits, causes no page faults.
    pub(super) fn empty_buffer(&self) -> NamedTensor {
        NamedTensor { name: self.name.clone(), shape: self.shape.clone(), tensor: self.tensor.empty_like().zero_() }
    }

    /// Dimensions.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, little-endian.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: contiguous and on the CPU by construction; no thread writes to weights while they are saved.
        unsafe { &*bytes_of(&self.tensor) }
    }

    /// The values of an [`empty_buffer`](Self::empty_buffer), to be overwritten. A plain copy of memory takes a third of the
    /// time of torch's `copy_`.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: contiguous and on the CPU by construction; nothing else refers to the tensor of a buffer.
        unsafe { &mut *bytes_of(&self.tensor) }
    }
}
