//! The token embedding: the input of the first chunk.

use tch::Tensor;

use super::{Parameters, WeightGradient, names};

/// Looks up rows of [`names::EMBEDDING`].
#[derive(Debug)]
pub struct Embedding {
    weight: Tensor,
    gradient: Tensor,
}

impl Embedding {
    /// The embedding of a stage with these parameters.
    pub fn new(parameters: &Parameters) -> Embedding {
        let parameter = parameters.get(names::EMBEDDING);
        Embedding { weight: parameter.compute.shallow_clone(), gradient: parameter.gradient.shallow_clone() }
    }

    /// `token_ids[tokens]` -> `[tokens, hidden]`.
    pub fn forward(&self, token_ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.weight, token_ids, -1, false, false)
    }

    /// The gradient of the weight.
    pub fn weight_gradient(&self, token_ids: Tensor, dy: Tensor) -> WeightGradient {
        WeightGradient::Embedding { accumulator: self.gradient.shallow_clone(), token_ids, dy }
    }
}
