//! The per-head norms of queries and keys, which Qwen 3 applies before the rotation.

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::{QkvActivations, QkvElements, QkvTransform};
use crate::initializer::Initializer;
use crate::llama::{LlamaConfig, parameter_name};
use crate::rms_norm::RmsNorm;
use crate::{ParameterSpec, Parameters, WeightGradient};

pub(super) fn parameter_specs(config: &LlamaConfig, layer: usize) -> Vec<ParameterSpec> {
    names(layer).map(|name| ParameterSpec::vector(name, config.head_dim, Initializer::Ones)).into()
}

pub(super) fn build(config: &LlamaConfig, layer: usize, parameters: &Parameters) -> Box<dyn QkvTransform> {
    let [query, key] = names(layer).map(|name| RmsNorm::new(parameters.get(&name), config.rms_norm_eps));
    Box::new(HeadNorms { query, key })
}

/// Returns the names of the weights of the query norm and of the key norm.
fn names(layer: usize) -> [String; 2] {
    ["self_attn.q_norm", "self_attn.k_norm"].map(|module| parameter_name(layer, module, "weight"))
}

/// Counts the tensors of the transform: a copy of queries, keys and values, and the queries before and after their
/// norm. The backward pass also holds the gradients of the queries before and after their norm. The norm of the keys
/// runs at another time and needs no more memory.
pub(super) fn elements(q: usize, kv: usize) -> QkvElements {
    let qkv = q + 2 * kv;
    QkvElements { forward: qkv + 2 * q, backward: qkv + 4 * q }
}

/// One norm for all heads of queries, and one for all heads of keys.
#[derive(Debug)]
struct HeadNorms {
    query: RmsNorm,
    key: RmsNorm,
}

impl HeadNorms {
    /// Returns each norm with the range of its heads.
    fn by_range(&self, heads: Heads) -> [(&RmsNorm, HeadRange); 2] {
        [(&self.query, queries(heads)), (&self.key, keys(heads))]
    }
}

impl QkvTransform for HeadNorms {
    fn forward(&self, projected: Tensor, heads: Heads) -> (Tensor, Option<QkvActivations>) {
        let normed = projected.copy();
        let statistics = self.by_range(heads).map(|(norm, range)| {
            let (y, rstd) = norm.apply(&range.of(&projected, heads));
            range.set(&normed, heads, &y);
            rstd
        });
        (normed, Some(QkvActivations { projected, statistics: statistics.into() }))
    }

    fn backward(
        &self,
        dqkv: &Tensor,
        activations: Option<QkvActivations>,
        heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) {
        let Some(QkvActivations { projected, statistics }) = activations else { return };
        for ((norm, range), rstd) in self.by_range(heads).into_iter().zip(&statistics) {
            let (dy, x) = (range.of(dqkv, heads), range.of(&projected, heads));
            let (dx, _) = norm.gradients(&dy, (&x, rstd), None, weight_gradients);
            range.set(dqkv, heads, &dx);
        }
    }
}

/// Consecutive heads of a token.
#[derive(Clone, Copy)]
struct HeadRange {
    first: i64,
    count: i64,
}

fn queries(heads: Heads) -> HeadRange {
    HeadRange { first: 0, count: heads.heads }
}

fn keys(heads: Heads) -> HeadRange {
    HeadRange { first: heads.heads, count: heads.kv_heads }
}

impl HeadRange {
    /// Returns the heads, `[tokens, count, head_dim]`, as a view of `qkv[tokens, columns]`.
    fn view(self, qkv: &Tensor, Heads { heads, kv_heads, head_dim }: Heads) -> Tensor {
        qkv.view([-1, heads + 2 * kv_heads, head_dim]).narrow(1, self.first, self.count)
    }

    /// Returns a contiguous copy of the heads.
    fn of(self, qkv: &Tensor, heads: Heads) -> Tensor {
        self.view(qkv, heads).contiguous()
    }

    fn set(self, qkv: &Tensor, heads: Heads, values: &Tensor) {
        self.view(qkv, heads).copy_(values);
    }
}
