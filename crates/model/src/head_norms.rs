//! The per-head norms of queries and keys, which Qwen 3 applies before the rotation.

use stagecoach_kernels::Heads;
use tch::Tensor;

use super::WeightGradient;
use super::rms_norm::RmsNorm;

/// One norm for all heads of queries, and one for all heads of keys.
#[derive(Debug)]
pub(super) struct HeadNorms {
    pub(super) query: RmsNorm,
    pub(super) key: RmsNorm,
}

/// The activations for the backward pass.
#[derive(Debug)]
pub(super) struct HeadNormActivations {
    /// Queries, keys and values before the norms, `[tokens, columns]`.
    pub(super) projected: Tensor,
    query_rstd: Tensor,
    key_rstd: Tensor,
}

impl HeadNorms {
    /// `projected[tokens, columns]` with queries and keys normed.
    pub(super) fn apply(&self, projected: Tensor, heads: Heads) -> (Tensor, HeadNormActivations) {
        let normed = projected.copy();
        let norm = |norm: &RmsNorm, range: HeadRange| {
            let (y, rstd) = norm.apply(&range.of(&projected, heads));
            range.set(&normed, heads, &y);
            rstd
        };
        let (query_rstd, key_rstd) = (norm(&self.query, queries(heads)), norm(&self.key, keys(heads)));
        (normed, HeadNormActivations { projected, query_rstd, key_rstd })
    }

    /// Converts the gradient of the output of [`apply`](Self::apply) into the gradient of its input, in place.
    pub(super) fn gradients(
        &self,
        dqkv: &Tensor,
        activations: HeadNormActivations,
        heads: Heads,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) {
        let HeadNormActivations { projected, query_rstd, key_rstd } = activations;
        let mut backward = |norm: &RmsNorm, rstd: &Tensor, range: HeadRange| {
            let (dy, x) = (range.of(dqkv, heads), range.of(&projected, heads));
            let (dx, _) = norm.gradients(&dy, (&x, rstd), None, weight_gradients);
            range.set(dqkv, heads, &dx);
        };
        backward(&self.query, &query_rstd, queries(heads));
        backward(&self.key, &key_rstd, keys(heads));
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
    /// The heads, `[tokens, count, head_dim]`, as a view of `qkv[tokens, columns]`.
    fn view(self, qkv: &Tensor, Heads { heads, kv_heads, head_dim }: Heads) -> Tensor {
        qkv.view([-1, heads + 2 * kv_heads, head_dim]).narrow(1, self.first, self.count)
    }

    /// A contiguous copy of the heads.
    fn of(self, qkv: &Tensor, heads: Heads) -> Tensor {
        self.view(qkv, heads).contiguous()
    }

    fn set(self, qkv: &Tensor, heads: Heads, values: &Tensor) {
        self.view(qkv, heads).copy_(values);
    }
}
