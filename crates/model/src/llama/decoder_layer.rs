//! One decoder layer of Llama and its relatives, forward and backward:
//! x -> h = x + attention(norm(x)) -> h + mlp(norm(h)).

use std::rc::Rc;

use stagecoach_api::job::Recompute;
use stagecoach_kernels::{self as kernels, Heads};
use tch::Tensor;

use super::qkv::{QkvActivations, QkvTransform};
use crate::linear::Linear;
use crate::rms_norm::RmsNorm;
use crate::rotary::RotaryEmbedding;
use crate::{Backward, ForwardContext, Layer, WeightGradient};

/// The weights of one layer. Tensors are `[tokens, columns]`.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    pub(super) input_layernorm: RmsNorm,
    /// Computes queries, keys and values in one product.
    pub(super) qkv_proj: Linear,
    /// The family's transform of queries, keys and values before the rotation, if the family has one.
    pub(super) qkv_transform: Option<Box<dyn QkvTransform>>,
    pub(super) rotary: Rc<RotaryEmbedding>,
    pub(super) heads: Heads,
    pub(super) o_proj: Linear,
    pub(super) post_attention_layernorm: RmsNorm,
    /// Computes gate and up in one product.
    pub(super) gate_up_proj: Linear,
    pub(super) down_proj: Linear,
}

/// The activations that a layer keeps from its forward pass for its backward pass.
#[derive(Debug)]
struct DecoderActivations {
    layer: Rc<DecoderLayer>,
    x: Tensor,
    input_rstd: Tensor,
    /// `None` if the backward pass recomputes queries, keys and values.
    qkv: Option<KeptQkv>,
    attention: Tensor,
    lse: Tensor,
    h: Tensor,
    post_attention_rstd: Tensor,
    /// `None` if the backward pass recomputes this tensor.
    gate_up: Option<Tensor>,
}

/// The queries, keys and values that a layer keeps for its backward pass.
#[derive(Debug)]
enum KeptQkv {
    /// Queries, keys and values after the rotation, as attention reads them.
    Rotated(Tensor),
    /// Queries, keys and values before the family's transform.
    Projected(Tensor),
}

/// Queries, keys and values as attention reads them.
struct AttentionInput {
    qkv: Tensor,
    step: Option<QkvActivations>,
}

impl AttentionInput {
    fn into_kept(self) -> KeptQkv {
        self.step.map_or(KeptQkv::Rotated(self.qkv), |step| KeptQkv::Projected(step.projected))
    }
}

impl DecoderLayer {
    /// Applies the family's transform, if the family has one, and then the rotation.
    fn attention_input(&self, projected: Tensor, ctx: &ForwardContext) -> AttentionInput {
        let (qkv, step) = match &self.qkv_transform {
            Some(step) => step.forward(projected, self.heads),
            None => (projected, None),
        };
        self.rotary.at(ctx.positions(), |rotation| kernels::rotary(&qkv, rotation, self.heads));
        AttentionInput { qkv, step }
    }

    /// Returns the input of attention. If the layer has not kept this tensor, recomputes it from the kept projection
    /// or, without one, from the layer's input `x`.
    fn attention_input_again(&self, kept: Option<KeptQkv>, x: &Tensor, ctx: &ForwardContext) -> AttentionInput {
        match kept {
            Some(KeptQkv::Rotated(qkv)) => AttentionInput { qkv, step: None },
            Some(KeptQkv::Projected(projected)) => self.attention_input(projected, ctx),
            None => self.attention_input(self.qkv_proj.forward(&self.input_layernorm.apply(x).0), ctx),
        }
    }
}

impl Layer for DecoderLayer {
    fn forward(self: Rc<Self>, x: Tensor, ctx: &ForwardContext) -> (Tensor, Box<dyn Backward>) {
        let (normed, input_rstd) = self.input_layernorm.apply(&x);
        let input = self.attention_input(self.qkv_proj.forward(&normed), ctx);
        let (attention, lse) = kernels::attention(&input.qkv, ctx.sequences(), self.heads);
        let qkv = input.into_kept();
        let h = self.o_proj.forward_add(&attention, &x);

        let (normed, post_attention_rstd) = self.post_attention_layernorm.apply(&h);
        let gate_up = self.gate_up_proj.forward(&normed);
        let y = self.down_proj.forward_add(&kernels::swiglu(&gate_up), &h);

        let keeps_all = ctx.recompute == Recompute::None;
        let (qkv, gate_up) = (keeps_all.then_some(qkv), keeps_all.then_some(gate_up));
        let saved =
            DecoderActivations { layer: self, x, input_rstd, qkv, attention, lse, h, post_attention_rstd, gate_up };
        (y, Box::new(saved))
    }
}

impl Backward for DecoderActivations {
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        ctx: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor {
        let DecoderActivations { layer, x, input_rstd, qkv, attention, lse, h, post_attention_rstd, gate_up } = *self;

        let gate_up =
            gate_up.unwrap_or_else(|| layer.gate_up_proj.forward(&layer.post_attention_layernorm.apply(&h).0));
        let (dgate_up, activated) = kernels::swiglu_backward(&layer.down_proj.backward(&dy), gate_up);
        layer.down_proj.weight_gradients(dy.shallow_clone(), activated, weight_gradients);
        let dnormed = layer.gate_up_proj.backward(&dgate_up);
        let (dh, normed) =
            layer.post_attention_layernorm.gradients(&dnormed, (&h, &post_attention_rstd), Some(&dy), weight_gradients);
        layer.gate_up_proj.weight_gradients(dgate_up, normed, weight_gradients);

        let AttentionInput { qkv, step } = layer.attention_input_again(qkv, &x, ctx);
        let dattention = layer.o_proj.backward(&dh);
        let (saved, sequences, heads) = ((&attention, &lse), ctx.sequences(), layer.heads);
        let dqkv = layer.rotary.at(ctx.positions(), |rotation| {
            kernels::attention_backward(&dattention, &qkv, saved, sequences, heads, rotation)
        });
        layer.o_proj.weight_gradients(dh.shallow_clone(), attention, weight_gradients);
        drop(qkv);
        if let Some(qkv_transform) = &layer.qkv_transform {
            qkv_transform.backward(&dqkv, step, layer.heads, weight_gradients);
        }
        let dnormed = layer.qkv_proj.backward(&dqkv);
        let (dx, normed) = layer.input_layernorm.gradients(&dnormed, (&x, &input_rstd), Some(&dh), weight_gradients);
        layer.qkv_proj.weight_gradients(dqkv, normed, weight_gradients);
        dx
    }
}
