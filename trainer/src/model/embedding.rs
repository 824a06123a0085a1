//! The token embedding: the input of the first chunk.

use tch::Tensor;

use super::{Parameters, names};

/// Looks up rows of [`names::EMBEDDING`].
#[derive(Debug)]
pub struct Embedding {
    /// Index of the weight in the stage's parameters.
    pub(crate) parameter: usize,
}

impl Embedding {
    /// The embedding of a stage with these parameters.
    pub(crate) fn new(parameters: &Parameters) -> Embedding {
        Embedding { parameter: parameters.index(names::EMBEDDING) }
    }

    /// `token_ids[rows, length]` -> `[rows, length, hidden]`.
    pub(crate) fn forward(&self, token_ids: &Tensor, parameters: &Parameters) -> Tensor {
        Tensor::embedding(&parameters[self.parameter].value, token_ids, -1, false, false)
    }
}
