//! The forward and backward pass of one chunk for one microbatch. A partition assigns the layers of a model to chunks.
//! The input of a layer and the gradient of its output arrive unchanged from the adjacent layers, even if these layers
//! are on other stages. Results are therefore bit-identical for every partition.

use std::rc::Rc;

use stagecoach_api::job::Recompute;
use stagecoach_model::{Backward, Embedding, ForwardContext, Head, HeadLoss, Layer, WeightGradient};
use tch::Tensor;

/// The layers of one pipeline chunk (torch: a virtual stage). The first chunk also has the embedding, and the last
/// chunk the head.
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

/// The activations that a chunk's forward pass keeps for its backward pass.
#[derive(Debug)]
pub struct SavedActivations {
    ctx: ForwardContext,
    layers: Vec<SavedLayer>,
    /// The token ids, `i64[tokens]`; only on the first chunk.
    token_ids: Option<Tensor>,
    /// The gradient of the loss with respect to the last hidden states; only on the last chunk.
    head_gradient: Option<Tensor>,
}

#[derive(Debug)]
enum SavedLayer {
    Activations(Box<dyn Backward>),
    /// The layer's input, from which the backward pass recomputes the activations.
    Input(Tensor),
}

/// The inputs of the loss.
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// The targets, `[tokens]`: -100 (torch's `ignore_index`) at a position that does not count in the loss.
    pub targets: &'a Tensor,
    /// The factor 1 / (number of targets in the global batch).
    pub scale: f64,
}

/// The result of a chunk's forward pass.
#[derive(Debug)]
pub enum ChunkOutput {
    /// The hidden states for the next chunk, `[tokens, hidden]`.
    Activations(Tensor),
    /// The cross-entropies of the tokens, on the stage's device.
    Loss(HeadLoss),
}

impl Chunk {
    /// Returns the number of values of the frozen weights.
    pub(super) fn frozen_numel(&self) -> i64 {
        self.frozen.iter().map(|tensor| tensor.numel() as i64).sum()
    }

    /// Runs the forward pass of training. `input` holds token ids, `[tokens]`, on the first chunk, and hidden states,
    /// `[tokens, hidden]`, on later chunks.
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

    /// Runs the forward pass without a backward pass. Only the last chunk needs `targets`.
    pub fn evaluate(&self, input: &Tensor, ctx: &ForwardContext, targets: Option<&Tensor>) -> ChunkOutput {
        let x = self.hidden_states(input, ctx);
        match (&self.head, targets) {
            (Some(head), Some(targets)) => ChunkOutput::Loss(head.loss(&x, targets)),
            _ => ChunkOutput::Activations(x),
        }
    }

    /// Returns the chunk's output hidden states, `[tokens, hidden]`.
    pub(crate) fn hidden_states(&self, input: &Tensor, ctx: &ForwardContext) -> Tensor {
        self.layers.iter().fold(self.embed(input), |x, layer| layer.clone().forward(x, ctx).0)
    }

    fn embed(&self, input: &Tensor) -> Tensor {
        self.embedding.as_ref().map_or_else(|| input.shallow_clone(), |embedding| embedding.forward(input))
    }

    /// Runs the backward pass through `saved`. `dy` is the gradient of the chunk's output. The last chunk does not use
    /// `dy`, because its gradient comes from the loss. Calls `weight_gradients` with the gradient of each weight except
    /// the head's. Returns the gradient of the chunk's input, or `None` on the first chunk.
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
