//! A linear layer over one weight or several adjacent weights, with its adapters; and the bias of a linear layer.

use std::ops::Range;

use stagecoach_kernels as kernels;
use tch::Tensor;

use super::WeightGradient;
use super::lora::{Adapter, columns};

/// A linear layer: `y = x weight^T`. If the weight combines several layers with the same input, their outputs are side
/// by side. An adapter adds its output to the outputs of its layer.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[out, in]`, in the dtype of activations.
    pub(super) weight: Tensor,
    /// The accumulators of the weight's gradient. Frozen rows have no accumulator.
    pub(super) gradients: Vec<RowsGradient>,
    /// The adapters. Each one adds to its own range of outputs.
    pub(super) adapters: Vec<Adapter>,
}

/// The accumulator of the gradient of consecutive rows of a weight or a bias.
#[derive(Debug)]
pub(super) struct RowsGradient {
    /// The rows of the weight or the bias.
    pub(super) rows: Range<i64>,
    /// `f32[rows, in]`, or `f32[rows]` for a bias.
    pub(super) accumulator: Tensor,
}

impl Linear {
    /// Maps `x[rows, in]` to `[rows, out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.with_adapters(x, kernels::linear(x, &self.weight, None))
    }

    /// Returns `residual[rows, out] + forward(x)`.
    pub(super) fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Tensor {
        self.with_adapters(x, kernels::linear(x, &self.weight, Some(residual)))
    }

    /// Writes `x weight^T` to `y` in fp32, without adapters.
    pub(super) fn forward_to_float(&self, x: &Tensor, y: &Tensor) {
        kernels::linear_to_float(x, &self.weight, y);
    }

    fn with_adapters(&self, x: &Tensor, y: Tensor) -> Tensor {
        self.adapters.iter().fold(y, |y, adapter| adapter.add_output(x, y))
    }

    /// Returns the gradient of the input. `dy` is the gradient of the output.
    pub(super) fn backward(&self, dy: &Tensor) -> Tensor {
        let dx = kernels::linear_backward(dy, &self.weight);
        self.adapters.iter().for_each(|adapter| adapter.add_input_gradient(dy, &dx));
        dx
    }

    /// Passes the gradients of the weights to `weight_gradients`, which accumulates them immediately or later.
    pub(crate) fn weight_gradients(&self, dy: Tensor, x: Tensor, weight_gradients: &mut dyn FnMut(WeightGradient)) {
        for adapter in &self.adapters {
            adapter.weight_gradients(&dy, &x, weight_gradients);
        }
        for RowsGradient { rows, accumulator } in &self.gradients {
            let (accumulator, dy) = (accumulator.shallow_clone(), columns(&dy, rows));
            weight_gradients(WeightGradient::Linear { accumulator, dy, x: x.shallow_clone() });
        }
    }
}

/// The bias, which is added to each row of a linear layer's output.
#[derive(Debug)]
pub(super) struct Bias {
    /// `f32[out]`.
    pub(super) value: Tensor,
    /// The accumulators of the bias's gradient. Frozen elements have no accumulator.
    pub(super) gradients: Vec<RowsGradient>,
}

impl Bias {
    /// Adds the bias to `y[rows, out]` in place.
    pub(super) fn add_to(&self, y: &Tensor) {
        let _ = y.shallow_clone().g_add_(&self.value);
    }

    /// Passes the gradient of the bias to `weight_gradients`. `dy` is the gradient of the output.
    pub(super) fn weight_gradients(&self, dy: &Tensor, weight_gradients: &mut dyn FnMut(WeightGradient)) {
        for RowsGradient { rows, accumulator } in &self.gradients {
            let gradient = kernels::column_sums(&columns(dy, rows));
            weight_gradients(WeightGradient::Sum { accumulator: accumulator.shallow_clone(), gradient });
        }
    }
}
