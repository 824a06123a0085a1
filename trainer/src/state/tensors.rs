//! The tensors that a stage answers for: its weights, and the optimizer's moments.

use tch::{Device, Tensor};

use crate::execute::Stage;

/// A tensor by its global name, contiguous, fp32, on the CPU.
#[derive(Debug)]
pub struct Named {
    /// Hugging Face's name; a moment's has [`FIRST_MOMENT`] or [`SECOND_MOMENT`] behind it.
    pub name: String,
    shape: Vec<usize>,
    tensor: Tensor,
}

/// Behind a weight's name: the running average of its gradient.
pub const FIRST_MOMENT: &str = ".exp_avg";
/// Behind a weight's name: the running average of its gradient's square.
pub const SECOND_MOMENT: &str = ".exp_avg_sq";

/// The weights that `stage` answers for: a tied one is its head's.
pub fn weights(stage: &Stage) -> Vec<Named> {
    owned(stage).map(|p| Named::new(&stage.parameters[p].spec.name, "", &stage.parameters[p].value)).collect()
}

/// Their moments.
pub(super) fn moments(stage: &Stage) -> Vec<Named> {
    owned(stage)
        .flat_map(|p| {
            let (name, moments) = (&stage.parameters[p].spec.name, stage.optimizer.moments(p));
            [Named::new(name, FIRST_MOMENT, &moments.exp_avg), Named::new(name, SECOND_MOMENT, &moments.exp_avg_sq)]
        })
        .collect()
}

fn owned(stage: &Stage) -> impl Iterator<Item = usize> {
    (0..stage.parameters.len()).filter(|&p| stage.is_responsible_for(p))
}

impl Named {
    fn new(name: &str, suffix: &str, tensor: &Tensor) -> Named {
        let shape = tensor.size().into_iter().map(|d| d as usize).collect();
        Named { name: format!("{name}{suffix}"), shape, tensor: tensor.to_device(Device::Cpu).contiguous() }
    }

    /// Memory for a tensor like this one, touched: the copy that training waits for must not wait for pages.
    pub(super) fn room(&self) -> Named {
        Named { name: self.name.clone(), shape: self.shape.clone(), tensor: self.tensor.empty_like().zero_() }
    }

    /// The values, to be overwritten: of a [`Named::room`] only. A plain copy of memory takes a third of the time of
    /// torch's `copy_`.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes().len();
        // SAFETY: as in `bytes`; a room's tensor is nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.tensor.data_ptr().cast(), bytes) }
    }

    /// Dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, little-endian.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: contiguous and on the CPU by construction, and nobody writes to weights while they are saved.
        unsafe { std::slice::from_raw_parts(self.tensor.data_ptr().cast(), self.tensor.numel() * size_of::<f32>()) }
    }
}
