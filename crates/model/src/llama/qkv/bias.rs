//! The biases of queries, keys and values in Qwen 2.

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::{QkvActivations, QkvTransform};
use crate::initializer::Initializer;
use crate::linear::Bias;
use crate::llama::{LlamaConfig, QKV, parameter_name};
use crate::{ParameterSpec, Parameters, WeightGradient};

pub(super) fn parameter_specs(config: &LlamaConfig, layer: usize) -> Vec<ParameterSpec> {
    let [q, kv] = [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads * config.head_dim);
    let [q_name, k_name, v_name] = names(layer);
    let bias = |name, width| ParameterSpec::vector(name, width, Initializer::Zeros);
    vec![bias(q_name, q), bias(k_name, kv).adjacent(), bias(v_name, kv).adjacent()]
}

pub(super) fn build(layer: usize, parameters: &Parameters) -> Box<dyn QkvTransform> {
    Box::new(parameters.bias(&names(layer)))
}

fn names(layer: usize) -> [String; 3] {
    QKV.map(|module| parameter_name(layer, module, "bias"))
}

impl QkvTransform for Bias {
    fn forward(&self, projected: Tensor, _heads: Heads) -> (Tensor, Option<QkvActivations>) {
        self.add_to(&projected);
        (projected, None)
    }

    fn backward(
        &self,
        dqkv: &Tensor,
        _activations: Option<QkvActivations>,
        _heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) {
        self.weight_gradients(dqkv, weight_gradients);
    }
}
