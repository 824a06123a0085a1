//! A linear layer over one weight or several adjacent weights, and its bias, if it has one.

use stagecoach_kernels as kernels;
use tch::Tensor;

use super::WeightGradient;

/// `y = x weight^T`. If the weight combines several layers with the same input, their outputs are side by side.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[out, in]`, in the type of activations.
    pub(super) weight: Tensor,
    /// `f32[out, in]`: the accumulator of the weight's gradient.
    pub(super) gradient: Tensor,
}

impl Linear {
    /// `x[rows, in]` -> `[rows, out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        kernels::linear(x, &self.weight, None)
    }

    /// `residual[rows, out] + forward(x)`.
    pub(super) fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Tensor {
        kernels::linear(x, &self.weight, Some(residual))
    }

    /// [`forward`](Self::forward) with a result in fp32, written to `y`.
    pub(super) fn forward_to_float(&self, x: &Tensor, y: &Tensor) {
        kernels::linear_to_float(x, &self.weight, y);
    }

    /// The gradient of the input, from the gradient of the output.
    pub(super) fn backward(&self, dy: &Tensor) -> Tensor {
        kernels::linear_backward(dy, &self.weight)
    }

    /// The gradient of the weight, to be accumulated now or later.
    pub(crate) fn weight_gradient(&self, dy: Tensor, x: Tensor) -> WeightGradient {
        WeightGradient::Linear { accumulator: self.gradient.shallow_clone(), dy, x }
    }
}

/// The bias, which is added to each row of a linear layer's output.
#[derive(Debug)]
pub(super) struct Bias {
    /// `f32[out]`.
    pub(super) value: Tensor,
    /// `f32[out]`: the accumulator of its gradient.
    pub(super) gradient: Tensor,
}

impl Bias {
    /// Adds the bias to `y[rows, out]` in place.
    pub(super) fn add_to(&self, y: &Tensor) {
        let _ = y.shallow_clone().g_add_(&self.value);
    }

    /// The gradient of the bias, from the gradient of the output.
    pub(super) fn gradient(&self, dy: &Tensor) -> WeightGradient {
        WeightGradient::Sum { accumulator: self.gradient.shallow_clone(), gradient: kernels::column_sums(dy) }
    }
}
