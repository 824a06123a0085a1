//! The adapter of a linear layer: its matrices, and the computation of its output and its gradients.

use std::ops::Range;

use stagecoach_kernels as kernels;
use tch::Tensor;

use crate::{Parameter, WeightGradient};

/// The term `scale * x A^T B^T`, which the adapter adds to outputs of a linear layer with the input `x`.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// The outputs of the linear layer to which the adapter adds.
    outputs: Range<i64>,
    a: Matrix,
    b: Matrix,
    scale: f64,
}

/// A matrix in the dtype of activations, and the accumulator of its gradient.
#[derive(Debug)]
struct Matrix {
    value: Tensor,
    gradient: Tensor,
}

impl Matrix {
    fn of(parameter: &Parameter) -> Matrix {
        Matrix { value: parameter.as_read().shallow_clone(), gradient: parameter.gradient.shallow_clone() }
    }

    fn gradient(&self, dy: Tensor, x: Tensor) -> WeightGradient {
        WeightGradient::Linear { accumulator: self.gradient.shallow_clone(), dy, x }
    }
}

impl Adapter {
    /// Returns the adapter with the matrices A, `[rank, in]`, and B, `[out, rank]`.
    pub(crate) fn new([a, b]: [&Parameter; 2], scale: f64) -> Adapter {
        Adapter { outputs: 0..b.spec.shape[0], a: Matrix::of(a), b: Matrix::of(b), scale }
    }

    /// Returns the same adapter for the columns `outputs` of a linear layer that combines the outputs of several
    /// layers.
    pub(crate) fn at(self, outputs: Range<i64>) -> Adapter {
        Adapter { outputs, ..self }
    }

    /// Returns `y[rows, all outputs]` plus the adapter's output for `x[rows, in]`, in the memory of `y` or in new
    /// memory.
    pub(crate) fn add_output(&self, x: &Tensor, y: Tensor) -> Tensor {
        let sum = kernels::linear(&self.projected(x), &self.b.value, Some(&columns(&y, &self.outputs)));
        if self.outputs == (0..y.size()[1]) {
            return sum;
        }
        y.narrow(1, self.outputs.start, self.outputs.end - self.outputs.start).copy_(&sum);
        y
    }

    /// Adds the adapter's part of the input's gradient to `dx[rows, in]` in place. `dy` is the gradient of all outputs.
    pub(crate) fn add_input_gradient(&self, dy: &Tensor, dx: &Tensor) {
        let own = kernels::linear_backward(&self.projected_gradient(&columns(dy, &self.outputs)), &self.a.value);
        let _ = dx.shallow_clone().g_add_(&own);
    }

    /// Passes the gradients of B and A to `weight_gradients`.
    pub(crate) fn weight_gradients(&self, dy: &Tensor, x: &Tensor, weight_gradients: &mut dyn FnMut(WeightGradient)) {
        let dy = columns(dy, &self.outputs);
        let a_gradient = self.a.gradient(self.projected_gradient(&dy), x.shallow_clone());
        weight_gradients(self.b.gradient(dy, self.projected(x)));
        weight_gradients(a_gradient);
    }

    /// Returns `scale * x A^T`, `[rows, rank]`.
    fn projected(&self, x: &Tensor) -> Tensor {
        kernels::linear(x, &self.a.value, None).g_mul_scalar_(self.scale)
    }

    /// Returns the gradient of `x A^T`, `[rows, rank]`, from the gradient of the adapter's output.
    fn projected_gradient(&self, dy: &Tensor) -> Tensor {
        kernels::linear_backward(dy, &self.b.value).g_mul_scalar_(self.scale)
    }
}

/// Returns these columns of `dy[rows, out]`: `dy` itself if these are all columns, otherwise a contiguous copy.
pub(crate) fn columns(dy: &Tensor, columns: &Range<i64>) -> Tensor {
    match *columns == (0..dy.size()[1]) {
        true => dy.shallow_clone(),
        false => dy.narrow(1, columns.start, columns.end - columns.start).contiguous(),
    }
}
