//! The optional step that changes the projected queries, keys and values before their rotation (RoPE). Model families
//! with Llama's architecture differ in this step.

mod bias;
mod head_norms;

use std::fmt::Debug;

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::config::LlamaConfig;
use crate::{ParameterSpec, Parameters, WeightGradient};

/// The step that a family adds to Llama's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkvVariant {
    /// No addition.
    Plain,
    /// Biases of queries, keys and values.
    Bias,
    /// A norm for each head of queries and keys.
    HeadNorms,
}

impl QkvVariant {
    /// Returns the step's parameters in `layer`.
    pub(super) fn parameter_specs(self, config: &LlamaConfig, layer: usize) -> Vec<ParameterSpec> {
        match self {
            QkvVariant::Plain => Vec::new(),
            QkvVariant::Bias => bias::parameter_specs(config, layer),
            QkvVariant::HeadNorms => head_norms::parameter_specs(config, layer),
        }
    }

    /// Builds the step in `layer`, if the variant has a step.
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

    /// Returns the number of elements that the step holds per token, for `q` columns of queries and `kv` columns each
    /// of keys and values.
    pub(super) fn elements(self, q: usize, kv: usize) -> QkvElements {
        match self {
            QkvVariant::Plain | QkvVariant::Bias => QkvElements::default(),
            QkvVariant::HeadNorms => head_norms::elements(q, kv),
        }
    }
}

/// The largest number of elements per token that a step holds besides its input (forward pass) or the gradient of its
/// output (backward pass).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QkvElements {
    pub(super) forward: usize,
    pub(super) backward: usize,
}

/// A step with its weights. Tensors are `[tokens, columns]`, with queries, keys and values side by side.
pub(super) trait QkvTransform: Debug {
    /// Returns the step's result, in the memory of `projected` or in new memory. If the step returns activations, the
    /// layer keeps them; otherwise the layer keeps the result.
    fn forward(&self, projected: Tensor, heads: Heads) -> (Tensor, Option<QkvActivations>);

    /// Converts `dqkv`, the gradient of the result, into the gradient of `projected`, in place. Passes the gradients of
    /// the step's weights to `weight_gradients`.
    fn backward(
        &self,
        dqkv: &Tensor,
        activations: Option<QkvActivations>,
        heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    );
}

/// The activations of a step that does not overwrite its input.
#[derive(Debug)]
pub(super) struct QkvActivations {
    /// The input, from which the backward pass can recompute the step.
    pub(super) projected: Tensor,
    /// For each weight of the step, the statistics of the input that the weight's norm needs in its backward pass.
    statistics: Vec<Tensor>,
}
