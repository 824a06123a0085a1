//! Forward and backward of one chunk for one microbatch. Every layer is its own autograd segment under every
//! partition: its input is a contiguous leaf, and that leaf's gradient is what goes to the layer before it.
//! Results are therefore bit-identical for every partition.

use tch::Tensor;

use crate::autograd::{GradientSink, WeightGradStore, grad};
use crate::model::{Embedding, ForwardContext, Head, Layer, Parameters};
use stagecoach_pipeline::WorkItem;

/// The layers of one pipeline chunk (torch: a virtual stage), with embedding and head where it has them.
#[derive(Debug)]
pub struct Chunk {
    /// The token embedding; only on the first chunk.
    pub(crate) embedding: Option<Embedding>,
    /// Decoder layers, each its own autograd segment; on the last chunk the final norm is the last entry.
    pub layers: Vec<Box<dyn Layer>>,
    /// The LM head; only on the last chunk.
    pub head: Option<Head>,
    /// Activation checkpointing: keep only each layer's input and recompute its forward in backward.
    pub(crate) recompute: bool,
}

/// Activations kept from a chunk's forward for its backward.
#[derive(Debug)]
pub struct SavedActivations {
    /// Each layer's input (an autograd leaf) and output; the output is `None` when it is recomputed.
    segments: Vec<(Tensor, Option<Tensor>)>,
    /// Token ids; only on the first chunk.
    token_ids: Option<Tensor>,
    /// Gradient of the loss with respect to the last hidden states; only on the last chunk.
    head_gradient: Option<Tensor>,
    attention_mask: Option<Tensor>,
}

/// Inputs of the loss.
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// `[rows * length]`, -100 (torch's `ignore_index`) where a position is excluded from the loss.
    pub targets: &'a Tensor,
    /// 1 / (number of targets in the global batch).
    pub scale: f64,
    /// fp32 gradient accumulator of the head's weight.
    pub weight_accumulator: &'a Tensor,
}

/// Result of a chunk's forward.
#[derive(Debug)]
pub enum ChunkOutput {
    /// `[rows, length, hidden]` for the next chunk.
    Activations(Tensor),
    /// The sum of the cross-entropies, in nats.
    Loss(f64),
}

impl Chunk {
    /// Training forward. `input` holds token ids on the first chunk and activations on the others.
    pub fn forward(
        &self,
        input: Tensor,
        attention_mask: Option<Tensor>,
        loss_inputs: Option<LossInputs>,
        parameters: &Parameters,
        gradient_sink: &GradientSink,
    ) -> (ChunkOutput, SavedActivations) {
        let segments = Vec::with_capacity(self.layers.len());
        let mut saved = SavedActivations { segments, token_ids: None, head_gradient: None, attention_mask };
        let mut x = match &self.embedding {
            Some(embedding) => {
                let x = embedding.forward(&input, parameters);
                saved.token_ids = Some(input.view([-1]));
                x
            }
            None => input,
        };
        for layer in &self.layers {
            let ctx = ForwardContext { parameters, gradient_sink, attention_mask: saved.attention_mask.as_ref() };
            let leaf = autograd_leaf(&x);
            let y = match self.recompute {
                false => layer.forward(&leaf, &ctx),
                true => tch::no_grad(|| layer.forward(&leaf, &ctx)),
            };
            x = y.detach();
            saved.segments.push((leaf, (!self.recompute).then_some(y)));
        }
        let x = x.contiguous();
        match (&self.head, loss_inputs) {
            (Some(head), Some(LossInputs { targets, scale, weight_accumulator })) => {
                let out = head.forward_backward(&x, targets, scale, parameters, weight_accumulator);
                saved.head_gradient = Some(out.hidden_gradient);
                (ChunkOutput::Loss(out.loss), saved)
            }
            _ => (ChunkOutput::Activations(x), saved),
        }
    }

    /// Forward without gradients; `targets` is required on the last chunk only.
    pub fn evaluate(
        &self,
        input: Tensor,
        attention_mask: Option<&Tensor>,
        targets: Option<&Tensor>,
        parameters: &Parameters,
        gradient_sink: &GradientSink,
    ) -> ChunkOutput {
        let x = self.hidden_states(input, attention_mask, parameters, gradient_sink);
        match (&self.head, targets) {
            (Some(head), Some(targets)) => ChunkOutput::Loss(head.loss(&x, targets, parameters)),
            _ => ChunkOutput::Activations(x),
        }
    }

    /// The chunk's output hidden states, computed without an autograd graph.
    pub(crate) fn hidden_states(
        &self,
        input: Tensor,
        attention_mask: Option<&Tensor>,
        parameters: &Parameters,
        gradient_sink: &GradientSink,
    ) -> Tensor {
        let _no_grad = tch::no_grad_guard();
        let mut x = match &self.embedding {
            Some(embedding) => embedding.forward(&input, parameters),
            None => input,
        };
        for layer in &self.layers {
            x = layer.forward(&x, &ForwardContext { parameters, gradient_sink, attention_mask });
        }
        x.contiguous()
    }

    /// Runs backward through `saved`. `dy` is the gradient of the chunk's output (unused on the last chunk, whose
    /// gradient comes from the loss). Weight gradients are stored under `item`; returns the gradient of the chunk's
    /// input, or `None` on the first chunk.
    pub fn backward(
        &self,
        saved: SavedActivations,
        dy: Option<Tensor>,
        item: WorkItem,
        parameters: &Parameters,
        gradient_sink: &GradientSink,
        weight_grad_store: &mut WeightGradStore,
    ) -> Option<Tensor> {
        let SavedActivations { mut segments, token_ids, head_gradient, attention_mask } = saved;
        let mut dy = head_gradient.or(dy)?;
        for layer in self.layers.iter().rev() {
            let (leaf, output) = segments.pop()?;
            let ctx = ForwardContext { parameters, gradient_sink, attention_mask: attention_mask.as_ref() };
            let y = output.unwrap_or_else(|| layer.forward(&leaf, &ctx));
            dy = grad(&y, &dy, &leaf);
            weight_grad_store.collect(item, gradient_sink);
        }
        let dy = dy.contiguous();
        match (&self.embedding, token_ids) {
            (Some(embedding), Some(token_ids)) => {
                let hidden_size = dy.size().last().copied().unwrap_or(1);
                weight_grad_store.push_embedding(item, embedding.parameter, token_ids, dy.view([-1, hidden_size]));
                None
            }
            _ => Some(dy),
        }
    }
}

/// A contiguous autograd leaf. `detach` cuts the graph here; `clone` would let gradients flow into the previous
/// segment.
fn autograd_leaf(x: &Tensor) -> Tensor {
    x.detach().contiguous().set_requires_grad(true)
}
