//! The token embedding, which is the first module of a model.

use tch::Tensor;

use super::parameters::LayerWeight;
use super::{Parameters, WeightGradient, names};

/// Looks up rows of [`names::EMBEDDING`].
#[derive(Debug)]
pub struct Embedding {
    weight: Tensor,
    /// The gradient accumulator; `None` for a frozen weight.
    gradient: Option<Tensor>,
}

impl Embedding {
    /// Returns the embedding of a stage with these parameters.
    pub fn new(parameters: &Parameters) -> Embedding {
        let LayerWeight { value, gradient } = parameters.get(names::EMBEDDING);
        Embedding { weight: value, gradient }
    }

    /// Maps `token_ids[tokens]` to `[tokens, hidden]`.
    pub fn forward(&self, token_ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.weight, token_ids, -1, false, false)
    }

    /// Returns the gradient of the weight; `None` for a frozen weight.
    pub fn weight_gradient(&self, token_ids: Tensor, dy: Tensor) -> Option<WeightGradient> {
        let accumulator = self.gradient.as_ref()?.shallow_clone();
        Some(WeightGradient::Embedding { accumulator, token_ids, dy })
    }
}
