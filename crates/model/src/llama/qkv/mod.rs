//! The optional transform of the projected queries, keys and values before their rotation (RoPE). Model families with
//! Llama's architecture differ in this transform.

mod bias;
mod head_norms;

use std::fmt::Debug;

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::config::LlamaConfig;
use crate::{ParameterSpec, Parameters, WeightGradient};

/// The transform that a family adds to Llama's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkvVariant {
    /// No transform.
    Plain,
    /// Biases of queries, keys and values.
    Bias,
    /// A norm for each head of queries and keys.
    HeadNorms,
}

impl QkvVariant {
    /// Returns the transform's parameters in `layer`.
    pub(super) fn parameter_specs(self, config: &LlamaConfig, layer: usize) -> Vec<ParameterSpec> {
        match self {
            QkvVariant::Plain => Vec::new(),
            QkvVariant::Bias => bias::parameter_specs(config, layer),
            QkvVariant::HeadNorms => head_norms::parameter_specs(config, layer),
        }
    }

    /// Builds the transform in `layer`, if the variant has a transform.
    pub(super) fn build(
        self,
        config: &LlamaConfig,
        layer: usize,
        parameters: &Parameters,
    ) -> Option<Box<dyn QkvTransform>> {
        match self {
            QkvVariant::Plain => None,
            QkvVariant::Bias => Some(bias::build(layer, parameters)),
            QkvVariant::HeadNorms => Some(head_norms::build(config, layer, parameters)),
        }
    }

    /// Returns the number of elements that the transform holds per token, for `q` columns of queries and `kv` columns
    /// each of keys and values.
    pub(super) fn elements(self, q: usize, kv: usize) -> QkvElements {
        match self {
            QkvVariant::Plain | QkvVariant::Bias => QkvElements::default(),
            QkvVariant::HeadNorms => head_norms::elements(q, kv),
        }
    }
}

/// The largest number of elements per token that a transform holds besides its input (forward pass) or the gradient of
/// its output (backward pass).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QkvElements {
    pub(super) forward: usize,
    pub(super) backward: usize,
}

/// A transform with its weights. Tensors are `[tokens, columns]`, with queries, keys and values side by side.
pub(super) trait QkvTransform: Debug {
    /// Returns the transform's result, in the memory of `projected` or in new memory. If the transform returns
    /// activations, the layer keeps them; otherwise the layer keeps the result.
    fn forward(&self, projected: Tensor, heads: Heads) -> (Tensor, Option<QkvActivations>);

    /// Converts `dqkv`, the gradient of the result, into the gradient of `projected`, in place. Passes the gradients of
    /// the transform's weights to `weight_gradients`.
    fn backward(
        &self,
        dqkv: &Tensor,
        activations: Option<QkvActivations>,
        heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    );
}

/// The activations of a transform that does not overwrite its input.
#[derive(Debug)]
pub(super) struct QkvActivations {
    /// The input, from which the backward pass can recompute the transform.
    pub(super) projected: Tensor,
    /// One tensor for each norm of the transform: the reciprocal root mean squares of the norm's input, which the
    /// norm's backward pass needs.
    statistics: Vec<Tensor>,
}
