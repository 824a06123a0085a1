//! The token embedding: the first chunk's way in.

use tch::Tensor;

use super::{Parameters, names};

/// Looks up rows of [`names::EMBEDDING`].
#[derive(Debug)]
pub struct Embedding {
    /// Index of the weight in the stage's parameters.
    pub parameter: usize,
}

impl Embedding {
    /// Over a stage's parameters.
    pub fn new(parameters: &Parameters) -> Embedding {
        Embedding { parameter: parameters.index(names::EMBEDDING) }
    }

    /// `ids[rows, length]` -> `[rows, length, hidden]`.
    pub fn forward(&self, ids: &Tensor, parameters: &Parameters) -> Tensor {
        Tensor::embedding(&parameters[self.parameter].value, ids, -1, false, false)
    }
}
