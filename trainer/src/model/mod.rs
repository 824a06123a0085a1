//! Models: architectures behind one trait, and what they share (parameters, embedding, head). An architecture lists its
//! parameters and costs and builds the layers of any range; `execute` runs forward and backward through the layers.

mod config;
mod embedding;
mod head;
mod initializer;
mod llama;
mod parameters;
mod rotary;

use std::ops::Range;

use stagecoach_pipeline::ModelCost;
use tch::Tensor;

pub use config::LlamaConfig;
pub use embedding::Embedding;
pub use head::Head;
#[cfg(test)]
pub(crate) use initializer::Initializer;
pub use llama::Llama;
pub use parameters::{Parameter, ParameterSpec, Parameters};

use crate::autograd::GradientSink;

/// Inputs of a layer's forward besides its activations: the same for all layers of a microbatch.
#[derive(Debug)]
pub struct ForwardContext<'a> {
    /// The stage's parameters.
    pub parameters: &'a Parameters,
    /// Receives the weight gradients in backward.
    pub gradient_sink: &'a GradientSink,
    /// `bool[rows, 1, length, length]`, true where a query may attend to a key; `None` is plain causal attention.
    pub attention_mask: Option<&'a Tensor>,
}

/// One autograd segment. Its weights never require grad; see [`crate::autograd`].
pub trait Layer: std::fmt::Debug {
    /// `x[rows, length, hidden]` -> `[rows, length, hidden]`.
    fn forward(&self, x: &Tensor, ctx: &ForwardContext) -> Tensor;
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

/// Hugging Face's parameter names that all decoders share.
pub mod names {
    /// The token embedding; also the head's weight if the two are tied.
    pub const EMBEDDING: &str = "model.embed_tokens.weight";
    /// The head's weight unless tied to the embedding.
    pub const HEAD: &str = "lm_head.weight";
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
    /// The parameters of `part`, in the order in which it uses them.
    fn parameter_specs(&self, part: &ModelPart) -> Vec<ParameterSpec>;
    /// Builds the layers of `part`, including the final norm if it has the head: each is one autograd segment.
    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Box<dyn Layer>>;
    /// FLOPs and bytes of a microbatch of `tokens` tokens in sequences of `length`.
    fn cost(&self, tokens: usize, length: usize) -> ModelCost;
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
