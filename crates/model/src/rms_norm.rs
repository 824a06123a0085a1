//! RMSNorm as a module: a part of each layer, and the model's last layer.

use std::rc::Rc;

use stagecoach_kernels::{self as kernels, RmsNormGradients};
use tch::Tensor;

use super::parameters::LayerWeight;
use super::{Backward, ForwardContext, Layer, WeightGradient};

/// Root-mean-square norm with a learned scale.
#[derive(Debug)]
pub(super) struct RmsNorm {
    /// `f32[hidden]`.
    weight: Tensor,
    /// The gradient accumulator; `None` for a frozen weight.
    gradient: Option<Tensor>,
    eps: f64,
}

impl RmsNorm {
    pub(crate) fn new(LayerWeight { value, gradient }: LayerWeight, eps: f64) -> RmsNorm {
        RmsNorm { weight: value, gradient, eps }
    }

    /// Returns the normalized `x[rows, hidden]`, and each row's reciprocal root mean square, which the backward pass
    /// needs.
    pub(super) fn apply(&self, x: &Tensor) -> (Tensor, Tensor) {
        kernels::rms_norm(x, &self.weight, self.eps)
    }

    /// Returns the gradient of the input plus `residual_gradient`, and the norm's recomputed output. Passes the
    /// gradient of the weight to `weight_gradients`.
    pub(super) fn gradients(
        &self,
        dy: &Tensor,
        (x, rstd): (&Tensor, &Tensor),
        residual_gradient: Option<&Tensor>,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> (Tensor, Tensor) {
        let RmsNormGradients { dx, dweight, y } =
            kernels::rms_norm_backward(dy, x, &self.weight, rstd, residual_gradient);
        if let Some(accumulator) = &self.gradient {
            weight_gradients(WeightGradient::Sum { accumulator: accumulator.shallow_clone(), gradient: dweight });
        }
        (dx, y)
    }
}

#[derive(Debug)]
struct RmsNormActivations {
    norm: Rc<RmsNorm>,
    x: Tensor,
    rstd: Tensor,
}

impl Layer for RmsNorm {
    fn forward(self: Rc<Self>, x: Tensor, _: &ForwardContext) -> (Tensor, Box<dyn Backward>) {
        let (y, rstd) = self.apply(&x);
        (y, Box::new(RmsNormActivations { norm: self, x, rstd }))
    }
}

impl Backward for RmsNormActivations {
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        _: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor {
        self.norm.gradients(&dy, (&self.x, &self.rstd), None, weight_gradients).0
    }
}
