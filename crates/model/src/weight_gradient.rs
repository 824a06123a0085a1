//! Gradients of weights, not yet accumulated.

use stagecoach_kernels::{accumulate_embedding, accumulate_linear};
use tch::Tensor;

/// A contribution of one microbatch to a weight's gradient. Backward passes hand it over as soon as its inputs exist;
/// the schedule decides when it is accumulated.
#[derive(Debug)]
#[must_use]
pub enum WeightGradient {
    /// `accumulator[out, in] += dy[rows, out]^T x[rows, in]`.
    Linear {
        /// fp32.
        accumulator: Tensor,
        /// Gradient of the layer's output.
        dy: Tensor,
        /// The layer's input.
        x: Tensor,
    },
    /// `accumulator += gradient`.
    Sum {
        /// fp32.
        accumulator: Tensor,
        /// fp32, of the same shape.
        gradient: Tensor,
    },
    /// `accumulator[token_ids[i]] += dy[i]`.
    Embedding {
        /// fp32.
        accumulator: Tensor,
        /// `i64[rows]`.
        token_ids: Tensor,
        /// `[rows, hidden]`.
        dy: Tensor,
    },
    /// A gradient that an architecture defines itself.
    Other(Box<dyn Accumulate>),
}

/// A weight gradient that knows its accumulator.
pub trait Accumulate: std::fmt::Debug {
    /// Adds the gradient.
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
