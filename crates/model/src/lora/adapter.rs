//! The adapter of a linear layer in memory: its output and its gradients.

use std::ops::Range;

use stagecoach_kernels as kernels;
use tch::Tensor;

use crate::{Parameter, WeightGradient};

/// `scale x A^T B^T`, which is added to outputs of a linear layer.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// The outputs of the linear layer to which the adapter adds.
    outputs: Range<i64>,
    a: Matrix,
    b: Matrix,
    scale: f64,
}

/// A matrix in the type of activations, and its accumulator.
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
    /// The adapter with the matrices A, `[rank, in]`, and B, `[out, rank]`.
    pub(crate) fn new([a, b]: [&Parameter; 2], scale: f64) -> Adapter {
        Adapter { outputs: 0..b.spec.shape[0], a: Matrix::of(a), b: Matrix::of(b), scale }
    }

    /// The same adapter, whose outputs are these ones of several layers' outputs side by side.
    pub(crate) fn at(self, outputs: Range<i64>) -> Adapter {
        Adapter { outputs, ..self }
    }

    /// `y[rows, all outputs]` with the adapter's output for `x[rows, in]`, in the memory of `y` or in new memory.
    pub(crate) fn add_output(&self, x: &Tensor, y: Tensor) -> Tensor {
        let sum = kernels::linear(&self.projected(x), &self.b.value, Some(&columns(&y, &self.outputs)));
        if self.outputs == (0..y.size()[1]) {
            return sum;
        }
        y.narrow(1, self.outputs.start, self.outputs.end - self.outputs.start).copy_(&sum);
        y
    }

    /// Adds the gradient of the input, from the gradient of all outputs, to `dx[rows, in]` in place.
    pub(crate) fn add_input_gradient(&self, dy: &Tensor, dx: &Tensor) {
        let own = kernels::linear_backward(&self.projected_gradient(&columns(dy, &self.outputs)), &self.a.value);
        let _ = dx.shallow_clone().g_add_(&own);
    }

    /// Passes on the gradients of B and A.
    pub(crate) fn weight_gradients(&self, dy: &Tensor, x: &Tensor, weight_gradients: &mut dyn FnMut(WeightGradient)) {
        let dy = columns(dy, &self.outputs);
        let a_gradient = self.a.gradient(self.projected_gradient(&dy), x.shallow_clone());
        weight_gradients(self.b.gradient(dy, self.projected(x)));
        weight_gradients(a_gradient);
    }

    /// `scale x A^T`, `[rows, rank]`.
    fn projected(&self, x: &Tensor) -> Tensor {
        kernels::linear(x, &self.a.value, None).g_mul_scalar_(self.scale)
    }

    /// The gradient of `x A^T`, `[rows, rank]`, from the gradient of the adapter's output.
    fn projected_gradient(&self, dy: &Tensor) -> Tensor {
        kernels::linear_backward(dy, &self.b.value).g_mul_scalar_(self.scale)
    }
}

/// These columns of `dy[rows, out]`: `dy` itself if they are all, otherwise a contiguous copy.
pub(crate) fn columns(dy: &Tensor, columns: &Range<i64>) -> Tensor {
    match *columns == (0..dy.size()[1]) {
        true => dy.shallow_clone(),
        false => dy.narrow(1, columns.start, columns.end - columns.start).contiguous(),
    }
}
