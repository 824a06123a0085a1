//! Models: architectures behind one trait, and what they share (parameters, embedding, head). An architecture lists its
//! parameters and costs and builds the layers of any range; `execute` runs forward and backward through the layers.

mod config;
mod config_json;
mod decoder_layer;
mod embedding;
mod head;
mod head_norms;
mod initializer;
mod linear;
mod llama;
mod parameters;
mod rms_norm;
mod rotary;
mod weight_gradient;

use std::ops::Range;
use std::rc::Rc;

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_pipeline::{ModelCost, Partition, Placement};
use tch::Tensor;

pub use crate::kernels::CuSeqlens;
use crate::kernels::Sequences;

pub use config::LlamaConfig;
pub(crate) use config_json::{SourceConfig, with_kept_fields};
pub use embedding::Embedding;
pub use head::Head;
#[cfg(test)]
pub(crate) use initializer::Initializer;
pub use llama::Llama;
pub use parameters::{Parameter, ParameterBytes, ParameterSpec, Parameters};
pub use weight_gradient::{Accumulate, WeightGradient};

/// What the layers of a microbatch need besides its activations.
#[derive(Debug)]
pub struct ForwardContext {
    /// Tokens of a row, padding included: a token's position is its index modulo this, after the first one.
    pub length: i64,
    /// Position of a row's first token: 0, unless a document is computed without those that are before it in its row.
    pub first_position: i64,
    /// Tokens attend to those before them in the same sequence.
    pub cu_seqlens: CuSeqlens,
    /// Which activations are kept.
    pub recompute: Recompute,
}

impl ForwardContext {
    /// Which tokens attend to each other.
    pub(crate) fn sequences(&self) -> Sequences<'_> {
        Sequences { cu_seqlens: &self.cu_seqlens, max_length: self.length }
    }

    /// The positions of a row's tokens.
    pub(crate) fn positions(&self) -> Range<i64> {
        self.first_position..self.first_position + self.length
    }

    /// The same for a forward pass that a backward pass follows at once.
    pub(crate) fn keeping_all(&self) -> ForwardContext {
        ForwardContext {
            length: self.length,
            first_position: self.first_position,
            cu_seqlens: self.cu_seqlens.shallow_clone(),
            recompute: Recompute::None,
        }
    }
}

/// A layer: a function of hidden states with weights.
pub trait Layer: std::fmt::Debug {
    /// `x[tokens, hidden]` -> `[tokens, hidden]`, and what the backward pass needs.
    fn forward(self: Rc<Self>, x: Tensor, ctx: &ForwardContext) -> (Tensor, Box<dyn Backward>);
}

/// The activations that a layer kept of its forward pass.
pub trait Backward: std::fmt::Debug {
    /// The gradient of the layer's input, from `dy`, that of its output. Hands over one gradient of each weight.
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        ctx: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor;
}

/// The contiguous part of a model that one chunk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// Decoder layers by index; may be empty.
    pub layers: Range<usize>,
    /// Whether it contains the token embedding.
    pub has_embedding: bool,
    /// Whether it contains the final norm and the head.
    pub has_head: bool,
}

impl ModelPart {
    /// The part of `chunk`.
    pub(crate) fn of_chunk(placement: &Placement, partition: &Partition, chunk: usize) -> ModelPart {
        ModelPart {
            layers: partition.range(chunk),
            has_embedding: placement.is_first(chunk),
            has_head: placement.is_last(chunk),
        }
    }
}

/// The parameters of a stage, in the order of its chunks: a tied weight whose ends are both there is there once.
pub(crate) fn stage_parameter_specs(
    architecture: &dyn Architecture,
    placement: &Placement,
    partition: &Partition,
    stage: usize,
) -> Vec<ParameterSpec> {
    let parts = placement.chunks_of(stage).map(|chunk| ModelPart::of_chunk(placement, partition, chunk));
    let mut specs: Vec<ParameterSpec> = Vec::new();
    for spec in parts.flat_map(|part| architecture.parameter_specs(&part)) {
        if specs.iter().all(|other| other.name != spec.name) {
            specs.push(spec);
        }
    }
    specs
}

/// Hugging Face's parameter names that all decoders share.
pub mod names {
    /// The token embedding; also the head's weight if the two are tied.
    pub const EMBEDDING: &str = "model.embed_tokens.weight";
    /// The head's weight unless tied to the embedding.
    pub const HEAD: &str = "lm_head.weight";
}

/// What the cost of a microbatch depends on, besides the model.
#[derive(Clone, Copy, Debug)]
pub struct MicrobatchCost {
    /// Tokens of the microbatch, padding included.
    pub tokens: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Type of activations.
    pub precision: Precision,
    /// Which activations are computed again.
    pub recompute: Recompute,
    /// Copies of weights and moments in the memory that is planned.
    pub copies: ParameterCopies,
}

/// Which copies of parameters stages hold besides the parameters themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterCopies {
    /// One that a checkpoint is written from.
    pub snapshot: bool,
    /// Those of checkpoints in memory: two of a stage's own state, and two of the state of the stage before it.
    pub memory_checkpoints: bool,
    /// Sums of gradient blocks that wait to be added, besides the accumulators.
    pub partial_sums: usize,
    /// Sums that the owner of a parameter receives from the other replicas.
    pub received_sums: usize,
    /// Replicas of the pipeline, which share moments, and what is copied of them and the weights.
    pub replicas: usize,
}

impl Default for ParameterCopies {
    fn default() -> ParameterCopies {
        ParameterCopies { snapshot: false, memory_checkpoints: false, partial_sums: 0, received_sums: 0, replicas: 1 }
    }
}

/// A model architecture. To add one, implement this trait and construct it in `JobConfig`.
pub trait Architecture: std::fmt::Debug {
    /// Number of decoder layers.
    fn num_layers(&self) -> usize;
    /// Width of the residual stream.
    fn hidden_size(&self) -> usize;
    /// Rows of embedding and head.
    fn vocab_size(&self) -> usize;
    /// Whether the head shares the embedding's weight.
    fn tie_word_embeddings(&self) -> bool;
    /// The parameters of `part`, in the order in which it uses them: the weight of the head last.
    fn parameter_specs(&self, part: &ModelPart) -> Vec<ParameterSpec>;
    /// Builds the layers of `part`, including the final norm if it has the head.
    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Rc<dyn Layer>>;
    /// FLOPs and bytes of a microbatch. A weight that embedding and head share is in neither's bytes.
    fn cost(&self, microbatch: MicrobatchCost) -> ModelCost;
    /// Bytes of a chunk that no layer's cost contains, such as tables of positions.
    fn chunk_bytes(&self) -> u64;
    /// The content of Hugging Face's `config.json`.
    fn config_json(&self) -> serde_json::Value;

    /// Every parameter once, sorted by name: the order of norms and hashes under every partition.
    fn all_parameter_specs(&self) -> Vec<ParameterSpec> {
        let whole = ModelPart { layers: 0..self.num_layers(), has_embedding: true, has_head: true };
        let mut specs = self.parameter_specs(&whole);
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        specs.dedup_by(|a, b| a.name == b.name);
        specs
    }

    /// The names of all parameters, sorted.
    fn parameter_names(&self) -> Vec<String> {
        self.all_parameter_specs().into_iter().map(|spec| spec.name).collect()
    }
}
