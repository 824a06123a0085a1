//! Models: architectures behind one trait, and their common parts (parameters, embedding, head). An architecture lists
//! its parameters and costs, and builds the layers of any range. The engine's module `execute` runs the forward and
//! backward passes through the layers.

mod config_json;
mod embedding;
mod fine_tuning;
mod head;
mod initializer;
mod linear;
mod llama;
mod lora;
mod model_config;
mod parameter_spec;
mod parameters;
mod registry;
mod rms_norm;
mod rotary;
mod weight_gradient;

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_pipeline::{ModelCost, Partition, Placement};
use tch::Tensor;

pub use stagecoach_kernels::CuSeqlens;
use stagecoach_kernels::VarlenSequences;

pub use embedding::Embedding;
pub use fine_tuning::{check_fine_tuning, fine_tuned};
pub use head::{Head, HeadLoss};
pub use initializer::Initializer;
pub use llama::LlamaConfig;
pub use lora::{adapter_config, adapter_names};
pub use model_config::ModelConfig;
pub use parameter_spec::{ParameterBytes, ParameterSpec, WeightRole};
pub use parameters::{FrozenWeight, Parameter, Parameters};
pub use registry::{ModelConfigError, SourceConfig, SpecifiedModel, model_types, with_kept_fields};
pub use weight_gradient::{Accumulate, WeightGradient};

/// The inputs of the layers for a microbatch, besides its activations.
#[derive(Debug)]
pub struct ForwardContext {
    /// The number of tokens of a row, including padding. A token's position is its index modulo this length, plus
    /// `first_position`.
    pub length: i64,
    /// The position of a row's first token. It is 0 unless a document is computed without the documents before it in
    /// its row.
    pub first_position: i64,
    /// The bounds of the sequences: a token attends to the tokens before it in the same sequence.
    pub cu_seqlens: CuSeqlens,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
}

impl ForwardContext {
    /// Returns the sequences. A token attends only to tokens of its own sequence.
    pub(crate) fn sequences(&self) -> VarlenSequences<'_> {
        VarlenSequences { cu_seqlens: &self.cu_seqlens, max_length: self.length }
    }

    /// Returns the positions of a row's tokens.
    pub(crate) fn positions(&self) -> Range<i64> {
        self.first_position..self.first_position + self.length
    }

    /// Returns this context without recomputation, for a forward pass that a backward pass follows directly.
    pub fn keeping_all(&self) -> ForwardContext {
        ForwardContext {
            length: self.length,
            first_position: self.first_position,
            cu_seqlens: self.cu_seqlens.shallow_clone(),
            recompute: Recompute::None,
        }
    }
}

/// A layer of a model, which maps hidden states to hidden states.
pub trait Layer: std::fmt::Debug {
    /// Maps `x[tokens, hidden]` to `[tokens, hidden]`. Also returns the state for the backward pass.
    fn forward(self: Rc<Self>, x: Tensor, ctx: &ForwardContext) -> (Tensor, Box<dyn Backward>);
}

/// The activations that a layer keeps from its forward pass for its backward pass.
pub trait Backward: std::fmt::Debug {
    /// Returns the gradient of the layer's input. `dy` is the gradient of the layer's output. Passes the gradients of
    /// the layer's weights to `weight_gradients`.
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        ctx: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor;
}

/// The contiguous part of a model that one chunk (a virtual pipeline stage) holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The indices of the decoder layers; may be empty.
    pub layers: Range<usize>,
    /// Whether the part contains the token embedding.
    pub has_embedding: bool,
    /// Whether the part contains the final norm and the head.
    pub has_head: bool,
}

impl ModelPart {
    /// Returns the part of the model that `chunk` holds.
    pub fn of_chunk(placement: &Placement, partition: &Partition, chunk: usize) -> ModelPart {
        ModelPart {
            layers: partition.range(chunk),
            has_embedding: placement.is_first(chunk),
            has_head: placement.is_last(chunk),
        }
    }
}

/// Returns the parameters of a stage, in the order of its chunks. A tied weight occurs once if embedding and head are
/// both on the stage.
pub fn stage_parameter_specs(
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

/// The parameter names of Hugging Face that all decoder models share.
pub mod names {
    /// The weight of the token embedding, and of the head if both are tied.
    pub const EMBEDDING: &str = "model.embed_tokens.weight";
    /// The weight of the head, unless it is tied to the embedding.
    pub const HEAD: &str = "lm_head.weight";
}

/// The properties, besides the model, on which the cost of a microbatch depends.
#[derive(Clone, Copy, Debug)]
pub struct MicrobatchCost {
    /// The number of tokens of the microbatch, including padding.
    pub tokens: usize,
    /// The number of tokens of a row.
    pub length: usize,
    /// The dtype of activations.
    pub precision: Precision,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// Whether the plan is for the memory of a GPU.
    pub on_gpu: bool,
    /// The copies of weights and moments that the planned memory includes.
    pub copies: ParameterCopies,
}

/// A pass of a microbatch through a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// F: the forward pass.
    Forward,
    /// I: the gradient of the input.
    BackwardInput,
    /// W: the gradients of the weights.
    BackwardWeight,
}

/// The kind of an operation, which determines the fraction of a GPU's peak that the operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A product of matrices.
    Product,
    /// The forward pass of attention.
    Attention,
    /// The backward pass of attention.
    AttentionBackward,
    /// An operation whose time depends on the bytes that it reads and writes.
    Elementwise,
}

/// One operation of a microbatch on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The name, which operations of several passes and modules may share.
    pub name: &'static str,
    /// The pass to which the operation belongs.
    pub pass: Pass,
    /// The kind of the operation.
    pub kind: OperationKind,
    /// Whether selective recomputation repeats the operation. The value is used only for operations of the forward
    /// pass.
    pub is_selective: bool,
    /// The number of floating-point operations.
    pub flops: f64,
    /// The smallest number of bytes of memory that the operation reads and writes.
    pub bytes: f64,
}

/// The operations of each module.
#[derive(Clone, Debug, Default)]
pub struct ModelOperations {
    /// The embedding.
    pub embedding: Vec<Operation>,
    /// One decoder layer.
    pub layer: Vec<Operation>,
    /// Final norm, head and loss.
    pub head: Vec<Operation>,
}

/// The copies of parameters that stages hold besides the parameters themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterCopies {
    /// The copy from which a checkpoint is written.
    pub snapshot: bool,
    /// The copies for checkpoints in memory: two of the stage's own state, and two of the state that the stage holds
    /// for another stage.
    pub memory_checkpoints: bool,
    /// The number of sums of gradient blocks (fixed groups of microbatches) that wait to be added up, besides the
    /// accumulators.
    pub partial_sums: usize,
    /// The number of sums that the owner of a parameter (the replica that updates it) receives from the other replicas.
    pub received_sums: usize,
    /// The number of replicas of the pipeline. Each replica holds its share of the moments, and of the copies of
    /// moments and weights.
    pub replicas: usize,
}

impl Default for ParameterCopies {
    fn default() -> ParameterCopies {
        ParameterCopies { snapshot: false, memory_checkpoints: false, partial_sums: 0, received_sums: 0, replicas: 1 }
    }
}

/// A model architecture. A [`ModelConfig`] constructs it.
pub trait Architecture: std::fmt::Debug {
    /// Returns the number of decoder layers.
    fn num_layers(&self) -> usize;
    /// Returns the width of the residual stream.
    fn hidden_size(&self) -> usize;
    /// Returns the number of rows of embedding and head.
    fn vocab_size(&self) -> usize;
    /// Whether the head shares the embedding's weight.
    fn tie_word_embeddings(&self) -> bool;
    /// Returns the weights of `part` in the order in which the part uses them. The weight of the head is last.
    fn weight_specs(&self, part: &ModelPart) -> Vec<ParameterSpec>;
    /// Builds the layers of `part`, including the final norm if the part has the head.
    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Rc<dyn Layer>>;
    /// Returns the FLOPs and bytes of a microbatch. A weight that embedding and head share counts in neither module.
    fn cost(&self, microbatch: MicrobatchCost) -> ModelCost;
    /// Returns the operations of a microbatch on a GPU, in bf16 and without recomputation. The default returns no
    /// operations, and the planner then can't predict times.
    fn operations(&self, _microbatch: MicrobatchCost) -> ModelOperations {
        ModelOperations::default()
    }
    /// Returns the bytes that each chunk needs besides the costs of its layers, such as the tables of rotary
    /// embeddings.
    fn chunk_bytes(&self) -> u64;
    /// Returns the content of Hugging Face's `config.json`.
    fn config_json(&self) -> serde_json::Value;

    /// Returns the parameters of `part`, which are the weights that training updates, in the order of the part's
    /// weights.
    fn parameter_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
        self.weight_specs(part).into_iter().filter(ParameterSpec::is_trained).collect()
    }

    /// Returns the frozen weights of `part`, each once, in the order of the part's weights.
    fn frozen_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
        let mut names = BTreeSet::new();
        let frozen = self.weight_specs(part).into_iter().filter(|spec| !spec.is_trained());
        frozen.filter(|spec| names.insert(spec.name.clone())).collect()
    }

    /// Whether embedding and head share a trained weight, so that their gradients are added.
    fn adds_tied_gradients(&self) -> bool {
        let embedding = ModelPart { layers: 0..0, has_embedding: true, has_head: false };
        self.tie_word_embeddings() && !self.parameter_specs(&embedding).is_empty()
    }

    /// Returns every weight once, sorted by name.
    fn all_weight_specs(&self) -> Vec<ParameterSpec> {
        let whole = ModelPart { layers: 0..self.num_layers(), has_embedding: true, has_head: true };
        let mut specs = self.weight_specs(&whole);
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        specs.dedup_by(|a, b| a.name == b.name);
        specs
    }

    /// Returns every parameter once, sorted by name. Norms and hashes use this order under every partition.
    fn all_parameter_specs(&self) -> Vec<ParameterSpec> {
        self.all_weight_specs().into_iter().filter(ParameterSpec::is_trained).collect()
    }

    /// Returns the number of values of all parameters. A tied parameter counts once.
    fn parameter_count(&self) -> u64 {
        self.all_parameter_specs().iter().map(ParameterSpec::numel).sum()
    }

    /// Returns the names of all parameters, sorted.
    fn parameter_names(&self) -> Vec<String> {
        self.all_parameter_specs().into_iter().map(|spec| spec.name).collect()
    }
}
