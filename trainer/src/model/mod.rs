//! What is trained: architectures behind one trait, and the parts they share (parameters, embedding, head).
//! An architecture lists its parameters and costs and builds the layers of any range; how a stage walks its
//! layers, and every gradient, is `execute`'s.

mod config;
mod embedding;
mod head;
mod initialize;
mod llama;
mod parameters;
mod rope;

use std::ops::Range;

use stagecoach_pipeline::ModelCost;
use tch::Tensor;

pub use config::{ConfigError, LlamaConfig};
pub use embedding::Embedding;
pub use head::Head;
pub use llama::Llama;
pub use parameters::{Initial, Parameter, ParameterSpec, Parameters};

use crate::autograd::Tape;

/// What a layer may see besides its input: one microbatch's forward pass.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The stage's parameters.
    pub parameters: &'a Parameters,
    /// Where backward will leave weight gradients.
    pub tape: &'a Tape,
    /// Where attention may look, `bool[rows, 1, length, length]`; `None` is plain causal attention.
    pub mask: Option<&'a Tensor>,
}

/// One autograd segment: `[rows, length, hidden]` in and out. Its weights never require grad; see [`crate::autograd`].
pub trait Layer: std::fmt::Debug {
    /// The layer's output.
    fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor;
}

/// The contiguous part of a model that one chunk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Layers by index; may be empty.
    pub layers: Range<usize>,
    /// Holds the token embedding.
    pub first: bool,
    /// Holds the final norm and the head.
    pub last: bool,
}

/// The names that every decoder here shares with Hugging Face.
pub mod names {
    /// The token embedding; also the head's weight when the two are tied.
    pub const EMBEDDING: &str = "model.embed_tokens.weight";
    /// The head's weight when it is its own.
    pub const HEAD: &str = "lm_head.weight";
}

/// A family of models. A second one is a file beside `llama.rs` and a line where the job's `model.type` is read.
pub trait Architecture: std::fmt::Debug {
    /// Layers between embedding and final norm.
    fn layers(&self) -> usize;
    /// Width of the residual stream.
    fn hidden(&self) -> usize;
    /// Rows of embedding and head.
    fn vocabulary(&self) -> usize;
    /// The head shares the embedding's weight.
    fn tied(&self) -> bool;
    /// The parameters of `part`, in the order in which it uses them.
    fn parameters(&self, part: &Part) -> Vec<ParameterSpec>;
    /// The layers of `part`, the final norm included when it is the last: each one an autograd segment.
    fn build(&self, part: &Part, parameters: &Parameters) -> Vec<Box<dyn Layer>>;
    /// FLOPs and bytes of a microbatch of `tokens` tokens in sequences of `length`.
    fn cost(&self, tokens: usize, length: usize) -> ModelCost;
    /// Hugging Face's `config.json`.
    fn config(&self) -> serde_json::Value;

    /// Every parameter once, sorted by name: the order of norms and hashes, whatever the partition.
    fn all_parameters(&self) -> Vec<ParameterSpec> {
        let whole = Part { layers: 0..self.layers(), first: true, last: true };
        let mut specs = self.parameters(&whole);
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        specs.dedup_by(|a, b| a.name == b.name);
        specs
    }

    /// Their names.
    fn names(&self) -> Vec<String> {
        self.all_parameters().into_iter().map(|spec| spec.name).collect()
    }
}
