//! The contributions of microbatches to the gradients of weights, before they are accumulated.

use stagecoach_kernels::{accumulate_embedding, accumulate_linear};
use tch::Tensor;

/// The contribution of one microbatch to a weight's gradient. A backward pass creates the contribution as soon as its
/// inputs exist. The schedule determines when the contribution is accumulated.
#[derive(Debug)]
#[must_use]
pub enum WeightGradient {
    /// `accumulator[out, in] += dy[rows, out]^T x[rows, in]`.
    Linear {
        /// The accumulator in fp32.
        accumulator: Tensor,
        /// The gradient of the layer's output.
        dy: Tensor,
        /// The layer's input.
        x: Tensor,
    },
    /// `accumulator += gradient`.
    Sum {
        /// The accumulator in fp32.
        accumulator: Tensor,
        /// The gradient in fp32, with the accumulator's shape.
        gradient: Tensor,
    },
    /// `accumulator[token_ids[i]] += dy[i]`.
    Embedding {
        /// The accumulator in fp32.
        accumulator: Tensor,
        /// The token ids, `i64[rows]`.
        token_ids: Tensor,
        /// The gradient of the output, `[rows, hidden]`.
        dy: Tensor,
    },
    /// A gradient that an architecture defines itself.
    Other(Box<dyn Accumulate>),
}

/// A weight gradient with its accumulator.
pub trait Accumulate: std::fmt::Debug {
    /// Adds the gradient to its accumulator.
    fn accumulate(self: Box<Self>);
}

impl WeightGradient {
    /// Adds the gradient to the accumulator.
    pub fn accumulate(self) {
        match self {
            WeightGradient::Linear { accumulator, dy, x } => accumulate_linear(&accumulator, &dy, &x),
            WeightGradient::Sum { mut accumulator, gradient } => accumulator += gradient,
            WeightGradient::Embedding { accumulator, token_ids, dy } => {
                accumulate_embedding(&accumulator, &token_ids, &dy);
            }
            WeightGradient::Other(gradient) => gradient.accumulate(),
        }
    }
}
