//! Forward and backward pass of one chunk for one microbatch. Every layer computes the same values under every
//! partition: its input and the gradient of its output arrive unchanged from the adjacent layers, on this stage or on
//! another. Results are therefore bit-identical for every partition.

use std::rc::Rc;

use stagecoach_api::job::Recompute;
use stagecoach_model::{Backward, Embedding, ForwardContext, Head, HeadLoss, Layer, WeightGradient};
use tch::Tensor;

/// The layers of one pipeline chunk (torch: a virtual stage), with embedding and head where it has them.
#[derive(Debug)]
pub struct Chunk {
    /// The token embedding; only on the first chunk.
    pub(crate) embedding: Option<Embedding>,
    /// Decoder layers; on the last chunk the final norm is the last entry.
    pub layers: Vec<Rc<dyn Layer>>,
    /// The LM head; only on the last chunk.
    pub head: Option<Head>,
    /// The frozen weights that the layers, the embedding and the head read.
    pub(super) frozen: Vec<Tensor>,
}

/// Activations kept from a chunk's forward for its backward.
#[derive(Debug)]
pub struct SavedActivations {
    ctx: ForwardContext,
    layers: Vec<SavedLayer>,
    /// `i64[tokens]`; only on the first chunk.
    token_ids: Option<Tensor>,
    /// Gradient of the loss with respect to the last hidden states; only on the last chunk.
    head_gradient: Option<Tensor>,
}

#[derive(Debug)]
enum SavedLayer {
    Activations(Box<dyn Backward>),
    /// The layer's input, from which the backward pass recomputes the activations.
    Input(Tensor),
}

/// Inputs of the loss.
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// `[tokens]`, -100 (torch's `ignore_index`) where a position is excluded from the loss.
    pub targets: &'a Tensor,
    /// 1 / (number of targets in the global batch).
    pub scale: f64,
}

/// Result of a chunk's forward.
#[derive(Debug)]
pub enum ChunkOutput {
    /// `[tokens, hidden]` for the next chunk.
    Activations(Tensor),
    /// The cross-entropies of the tokens, on the stage's device.
    Loss(HeadLoss),
}

impl Chunk {
    /// The number of values of the frozen weights.
    pub(super) fn frozen_numel(&self) -> i64 {
        self.frozen.iter().map(|tensor| tensor.numel() as i64).sum()
    }

    /// Training forward. `input` holds token ids `[tokens]` on the first chunk and hidden states `[tokens, hidden]` on
    /// the others.
    pub fn forward(
        &self,
        input: Tensor,
        ctx: ForwardContext,
        loss_inputs: Option<LossInputs>,
    ) -> (ChunkOutput, SavedActivations) {
        let mut x = self.embed(&input);
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let input = (ctx.recompute == Recompute::Full).then(|| x.shallow_clone());
            let (y, activations) = layer.clone().forward(x, &ctx);
            x = y;
            layers.push(input.map_or(SavedLayer::Activations(activations), SavedLayer::Input));
        }
        let token_ids = self.embedding.is_some().then_some(input);
        let mut saved = SavedActivations { ctx, layers, token_ids, head_gradient: None };
        match (&self.head, loss_inputs) {
            (Some(head), Some(LossInputs { targets, scale })) => {
                let out = head.forward_backward(&x, targets, scale);
                saved.head_gradient = Some(out.hidden_gradient);
                (ChunkOutput::Loss(out.loss), saved)
            }
            _ => (ChunkOutput::Activations(x), saved),
        }
    }

    /// Forward pass without a backward pass; `targets` is required on the last chunk only.
    pub fn evaluate(&self, input: &Tensor, ctx: &ForwardContext, targets: Option<&Tensor>) -> ChunkOutput {
        let x = self.hidden_states(input, ctx);
        match (&self.head, targets) {
            (Some(head), Some(targets)) => ChunkOutput::Loss(head.loss(&x, targets)),
            _ => ChunkOutput::Activations(x),
        }
    }

    /// The chunk's output hidden states, `[tokens, hidden]`.
    pub(crate) fn hidden_states(&self, input: &Tensor, ctx: &ForwardContext) -> Tensor {
        self.layers.iter().fold(self.embed(input), |x, layer| layer.clone().forward(x, ctx).0)
    }

    fn embed(&self, input: &Tensor) -> Tensor {
        self.embedding.as_ref().map_or_else(|| input.shallow_clone(), |embedding| embedding.forward(input))
    }

    /// Runs the backward pass through `saved`. `dy` is the gradient of the chunk's output (unused on the last chunk,
    /// whose gradient comes from the loss). Passes one gradient of each weight, except the head's, to the caller.
    /// Returns the gradient of the chunk's input, or `None` on the first chunk.
    pub fn backward(
        &self,
        saved: SavedActivations,
        dy: Option<Tensor>,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Option<Tensor> {
        let SavedActivations { ctx, layers, token_ids, head_gradient } = saved;
        let mut dy = head_gradient.or(dy)?;
        for (layer, saved) in self.layers.iter().zip(layers).rev() {
            let activations = match saved {
                SavedLayer::Activations(activations) => activations,
                SavedLayer::Input(x) => layer.clone().forward(x, &ctx.keeping_all()).1,
            };
            dy = activations.backward(dy, &ctx, weight_gradients);
        }
        match (&self.embedding, token_ids) {
            (Some(embedding), Some(token_ids)) => {
                embedding.weight_gradient(token_ids, dy).map(weight_gradients);
                None
            }
            _ => Some(dy),
        }
    }
}
