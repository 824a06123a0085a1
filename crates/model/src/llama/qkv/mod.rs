//! The step between the projection of queries, keys and values and their rotation, in which the families of Llama
//! differ.

mod bias;
mod head_norms;

use std::fmt::Debug;

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::config::LlamaConfig;
use crate::{ParameterSpec, Parameters, WeightGradient};

/// A family's step, by what it adds to Llama's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkvVariant {
    /// Nothing.
    Plain,
    /// Biases of queries, keys and values.
    Bias,
    /// A norm for each head of queries and keys.
    HeadNorms,
}

impl QkvVariant {
    /// The step's parameters in `layer`.
    pub(super) fn parameter_specs(self, config: &LlamaConfig, layer: usize) -> Vec<ParameterSpec> {
        match self {
            QkvVariant::Plain => Vec::new(),
            QkvVariant::Bias => bias::parameter_specs(config, layer),
            QkvVariant::HeadNorms => head_norms::parameter_specs(config, layer),
        }
    }

    /// The step in `layer`, if there is one.
    pub(super) fn build(self, config: &LlamaConfig, layer: usize, parameters: &Parameters) -> Option<Box<dyn QkvStep>> {
        match self {
            QkvVariant::Plain => None,
            QkvVariant::Bias => Some(bias::build(layer, parameters)),
            QkvVariant::HeadNorms => Some(head_norms::build(config, layer, parameters)),
        }
    }

    /// The memory of the step with `q` columns of queries, and `kv` columns each of keys and of values.
    pub(super) fn elements(self, q: usize, kv: usize) -> QkvElements {
        match self {
            QkvVariant::Plain | QkvVariant::Bias => QkvElements::default(),
            QkvVariant::HeadNorms => head_norms::elements(q, kv),
        }
    }
}

/// The most elements per token that a step holds in addition to its input or the gradient of its output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QkvElements {
    pub(super) forward: usize,
    pub(super) backward: usize,
}

/// A step with its weights. Tensors are `[tokens, columns]`, with queries, keys and values side by side.
pub(super) trait QkvStep: Debug {
    /// The step's result, in the memory of `projected` or in new memory. The layer keeps the returned activations if
    /// there are any, and otherwise the result.
    fn forward(&self, projected: Tensor, heads: Heads) -> (Tensor, Option<QkvActivations>);

    /// Converts the gradient of the result into the gradient of `projected`, in place.
    fn backward(
        &self,
        dqkv: &Tensor,
        activations: Option<QkvActivations>,
        heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    );
}

/// The activations of a step whose input exists beside its result.
#[derive(Debug)]
pub(super) struct QkvActivations {
    /// The input, from which the step can be computed again.
    pub(super) projected: Tensor,
    /// Statistics of the input, in the order of the step's weights.
    statistics: Vec<Tensor>,
}
