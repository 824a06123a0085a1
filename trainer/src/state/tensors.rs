//! The tensors that a stage answers for.

use safetensors::Dtype;
use stagecoach_checkpoint::TensorView;
use tch::{Device, Tensor};

use crate::execute::Stage;

/// A tensor by its global name, contiguous, fp32, on the CPU.
#[derive(Debug)]
pub struct Named {
    /// Hugging Face's name.
    pub name: String,
    tensor: Tensor,
}

/// The weights that `stage` answers for: a tied one is its head's.
pub fn tensors(stage: &Stage) -> Vec<Named> {
    (0..stage.parameters.len())
        .filter(|&p| stage.owns(p))
        .map(|p| Named {
            name: stage.parameters[p].spec.name.clone(),
            tensor: stage.parameters[p].value.to_device(Device::Cpu).contiguous(),
        })
        .collect()
}

impl Named {
    /// Dimensions.
    pub fn shape(&self) -> Vec<usize> {
        self.tensor.size().into_iter().map(|d| d as usize).collect()
    }

    /// The values, little-endian.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: contiguous and on the CPU by construction, and nobody writes to weights while they are saved.
        unsafe { std::slice::from_raw_parts(self.tensor.data_ptr().cast(), self.tensor.numel() * size_of::<f32>()) }
    }
}

/// The same, as the checkpoint room takes them.
pub fn views(tensors: &[Named]) -> Vec<(String, TensorView<'_>)> {
    tensors
        .iter()
        .filter_map(|t| Some((t.name.clone(), TensorView::new(Dtype::F32, t.shape(), t.bytes()).ok()?)))
        .collect()
}
