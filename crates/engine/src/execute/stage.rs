//! The state of a stage: its chunks, their parameters and the optimizer state.

use std::collections::BTreeMap;

use stagecoach_api::job::{AdamWSpec, Precision, Recompute};
use stagecoach_group::Activity;
use stagecoach_kernels as kernels;
use stagecoach_kernels::device::{CudaContext, CudaError, Timestamp};
use stagecoach_model::{Architecture, Embedding, Head, ModelPart, ParameterSpec, Parameters, names};
use stagecoach_pipeline::{Partition, Placement, Replica};
use tch::{Device, Kind, Tensor};

use super::Chunk;
use super::gradients::{AccumulatorGroup, Gradients};
use super::sharding::{Sharding, owners};
use super::stage_gpu::StageGpu;
use super::tied_embedding::TiedEmbedding;
use crate::optimize::AdamW;
use crate::tensor_hash::TensorHash;

/// The configuration from which every rank builds its stage.
#[derive(Debug)]
pub struct StageConfig<'a> {
    /// The model.
    pub architecture: &'a dyn Architecture,
    /// The mapping of chunks to stages. Its ranks are the numbers of the stages, like torch's ranks within one
    /// pipeline.
    pub placement: &'a Placement,
    /// The mapping of layers to chunks.
    pub partition: &'a Partition,
    /// The seed of the initial weights. With `None`, the weights are zero until the caller loads them.
    pub seed: Option<u64>,
    /// AdamW hyperparameters.
    pub optimizer: AdamWSpec,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// The dtype of activations and of the weights that layers read.
    pub precision: Precision,
    /// The device of parameters and activations.
    pub device: Device,
    /// The replica of the pipeline that contains the stage.
    pub replica: Replica,
}

/// The model chunks, the parameters and the optimizer of one stage of one replica.
#[derive(Debug)]
pub struct Stage {
    /// The number of the stage within its replica. In a job without replicas, this number is the rank.
    pub index: usize,
    /// The replica of the pipeline that contains the stage.
    pub replica: Replica,
    /// The division of the parameters among the replicas.
    pub sharding: Sharding,
    /// The chunks by their index.
    pub chunks: BTreeMap<usize, Chunk>,
    /// The weights of all chunks.
    pub parameters: Parameters,
    /// The hashes of the frozen weights; `None` before they are loaded.
    pub frozen_hashes: Option<Vec<TensorHash>>,
    /// The index of each parameter in the sorted list of all parameter names of the model.
    pub(crate) global_index: Vec<u32>,
    /// AdamW with its moments.
    pub(crate) optimizer: AdamW,
    /// The tied embedding, if embeddings are tied and this rank holds the embedding or the head.
    pub tied_embedding: Option<TiedEmbedding>,
    /// The weight gradients of the step in progress.
    pub(super) gradients: Gradients,
    /// The dtype and size of activations.
    pub(super) activations: ActivationConfig,
    /// The device of parameters and activations.
    pub(crate) device: Device,
    /// The GPU whose memory holds the stage's tensors; `None` on a CPU, and until the stage's links are open.
    pub gpu: Option<StageGpu>,
}

/// The configuration of a stage's activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivationConfig {
    /// The last dimension of the tensors passed between stages.
    pub(super) hidden_size: i64,
    pub(super) kind: Kind,
    /// The activations that the backward pass recomputes.
    pub(super) recompute: Recompute,
}

impl Stage {
    /// Builds a whole model as one stage on the CPU. The weights are zero until the caller loads them.
    pub fn of_model(architecture: &dyn Architecture, optimizer: AdamWSpec, precision: Precision) -> Stage {
        let config = StageConfig {
            architecture,
            placement: &Placement::linear(1),
            partition: &Partition { layers: vec![architecture.num_layers()] },
            seed: None,
            optimizer,
            recompute: Recompute::None,
            precision,
            device: Device::Cpu,
            replica: Replica::ONLY,
        };
        Stage::build(0, &config)
    }

    /// Builds stage `index` of the pipeline.
    pub fn build(index: usize, config: &StageConfig) -> Stage {
        let StageConfig { architecture, placement, partition, device, .. } = *config;
        let part = |chunk| (chunk, ModelPart::of_chunk(placement, partition, chunk));
        let parts: Vec<(usize, ModelPart)> = placement.chunks_of(index).map(part).collect();
        let specs = parts.iter().flat_map(|(_, part)| architecture.weight_specs(part)).collect();
        let kind = kind(config.precision);
        let parameters = Parameters::new(specs, config.seed, kind, device);
        let tie = architecture.tie_word_embeddings();
        let tied_embedding = if tie { TiedEmbedding::of_stage(index, placement, &parameters) } else { None };
        let both_ends_here = tied_embedding.as_ref().filter(|tied| tied.peer.is_none());
        let head_accumulator = both_ends_here.map(|tied| &tied.peer_gradient);
        let chunk = |part: &ModelPart| Chunk {
            embedding: part.has_embedding.then(|| Embedding::new(&parameters)),
            layers: architecture.build_layers(part, &parameters),
            head: part.has_head.then(|| Head::new(tie, &parameters, head_accumulator)),
            frozen: frozen_weights(architecture, part, &parameters),
        };
        let specs: Vec<_> = parameters.iter().map(|parameter| &parameter.spec).collect();
        let owners = owners(&specs, config.replica.count);
        Stage {
            index,
            replica: config.replica,
            chunks: parts.iter().map(|(index, part)| (*index, chunk(part))).collect(),
            global_index: global_indices(architecture, &parameters),
            optimizer: AdamW::new(config.optimizer, &parameters, |p| owners[p] == config.replica.index),
            sharding: Sharding {
                owners,
                chunk_of: first_chunks(architecture, &parts, &parameters),
                gathers: BTreeMap::new(),
            },
            gradients: Gradients::new(accumulators(architecture, &parts, &parameters, head_accumulator)),
            tied_embedding,
            activations: ActivationConfig {
                hidden_size: architecture.hidden_size() as i64,
                kind,
                recompute: config.recompute,
            },
            device,
            gpu: None,
            frozen_hashes: None,
            parameters,
        }
    }

    /// Whether this rank reports `parameter` in norms, hashes and checkpoints. The rank with the head reports a tied
    /// weight.
    pub(crate) fn is_responsible_for(&self, parameter: usize) -> bool {
        let is_others = |tied: &TiedEmbedding| tied.parameter == parameter && !tied.has_head;
        self.owns(parameter) && !self.tied_embedding.as_ref().is_some_and(is_others)
    }

    /// Whether this replica updates `parameter`.
    pub fn owns(&self, parameter: usize) -> bool {
        self.sharding.owners[parameter] == self.replica.index
    }

    /// Returns the time at which the stage completes the work that it has queued so far.
    pub(super) fn timestamp(&self) -> Timestamp {
        self.gpu.as_ref().map_or_else(Timestamp::now, StageGpu::timestamp)
    }

    /// Sets the activity that heartbeats report. The activity begins when the stage has completed the work that it has
    /// queued so far. Returns this time. `waits_for` is the rank for which the stage waits.
    pub(super) fn set_activity(
        &self,
        activity: &Activity,
        text: impl Into<String>,
        waits_for: Option<usize>,
    ) -> Timestamp {
        let now = self.timestamp();
        match now.clone() {
            Timestamp::Host(_) => activity.set(text, waits_for),
            device => activity.set_after(text, waits_for, move || device.wait()),
        }
        now
    }

    /// Delays the next activity until the stage has completed the work that it has queued so far.
    pub(super) fn hold_activity(&self, activity: &Activity) {
        if let device @ Timestamp::Device(_) = self.timestamp() {
            activity.hold_until(move || device.wait());
        }
    }

    /// Delays later computations, which may write to the stage's parameters, until the concurrent copies of the
    /// parameters to the host are complete.
    pub(crate) fn wait_for_copies(&self) -> Result<(), CudaError> {
        self.gpu.as_ref().map_or(Ok(()), StageGpu::wait_for_copies)
    }

    /// Returns the context of the stage's GPU, if the stage has one. The context allocates memory for copies to or from
    /// the GPU.
    pub fn gpu_context(&self) -> Option<CudaContext> {
        self.gpu.as_ref().map(StageGpu::context)
    }

    /// Discards the state of an unfinished step. The caller may then overwrite the memory of the step.
    ///
    /// # Errors
    /// If the GPU's driver fails.
    pub fn discard_step(&mut self) -> Result<(), CudaError> {
        self.wait_for_copies()?;
        self.gradients.clear();
        self.sharding.gathers.clear();
        Ok(())
    }

    /// Zeroes every gradient accumulator. The executor calls this method at the start of a step.
    pub fn zero_grad(&self) {
        self.parameters.zero_grad();
        if let Some(tied) = &self.tied_embedding {
            let _ = tied.peer_gradient.shallow_clone().zero_();
        }
    }

    /// Returns the global indices of the gradients that this rank reports, and the squared L2 norms of these gradients,
    /// `f64[gradients]`, on the stage's device.
    pub(crate) fn squared_norms(&self) -> (Vec<u32>, Tensor) {
        let reported = (0..self.parameters.len()).filter(|&p| self.is_responsible_for(p));
        let (indices, gradients): (Vec<u32>, Vec<&Tensor>) =
            reported.map(|p| (self.global_index[p], &self.parameters[p].gradient)).unzip();
        (indices, kernels::squared_norms(&gradients, self.device))
    }
}

/// Returns the index of each parameter in the sorted list of all parameter names of the model.
fn global_indices(architecture: &dyn Architecture, parameters: &Parameters) -> Vec<u32> {
    let all = architecture.all_parameter_specs();
    let index = |name: &str| all.binary_search_by(|spec| spec.name.as_str().cmp(name)).ok();
    parameters.iter().filter_map(|parameter| index(&parameter.spec.name)).map(|index| index as u32).collect()
}

/// Returns the first chunk that reads each parameter.
fn first_chunks(architecture: &dyn Architecture, parts: &[(usize, ModelPart)], parameters: &Parameters) -> Vec<usize> {
    let mut first = vec![0; parameters.len()];
    for (chunk, part) in parts.iter().rev() {
        architecture.parameter_specs(part).iter().for_each(|spec| first[parameters.index(&spec.name)] = *chunk);
    }
    first
}

/// Returns the frozen weights of `part`, each once.
fn frozen_weights(architecture: &dyn Architecture, part: &ModelPart, parameters: &Parameters) -> Vec<Tensor> {
    let weight = |spec: ParameterSpec| parameters.frozen().iter().find(|weight| weight.spec.name == spec.name);
    architecture.frozen_specs(part).into_iter().filter_map(weight).map(|weight| weight.value.shallow_clone()).collect()
}

/// Returns the gradient accumulators, grouped by the action that adds to them, each with the index of its parameter.
fn accumulators(
    architecture: &dyn Architecture,
    parts: &[(usize, ModelPart)],
    parameters: &Parameters,
    head_accumulator: Option<&Tensor>,
) -> BTreeMap<AccumulatorGroup, Vec<(usize, Tensor)>> {
    let mut accumulators: BTreeMap<AccumulatorGroup, Vec<(usize, Tensor)>> = BTreeMap::new();
    for (chunk, part) in parts {
        let specs = architecture.parameter_specs(part);
        // the head is the last spec of this name; with a tied weight, an earlier spec of the same name is the embedding
        let head_name = if architecture.tie_word_embeddings() { names::EMBEDDING } else { names::HEAD };
        let head = specs.iter().rposition(|spec| part.has_head && spec.name == head_name);
        for (at, spec) in specs.iter().enumerate() {
            let index = parameters.index(&spec.name);
            let gradient = &parameters[index].gradient;
            let (group, gradient) = match head == Some(at) {
                true => (AccumulatorGroup::Head, head_accumulator.unwrap_or(gradient)),
                false => (AccumulatorGroup::Chunk(*chunk), gradient),
            };
            accumulators.entry(group).or_default().push((index, gradient.shallow_clone()));
        }
    }
    accumulators
}

/// Returns the dtype of activations.
pub fn kind(precision: Precision) -> Kind {
    match precision {
        Precision::Float32 => Kind::Float,
        Precision::BFloat16 => Kind::BFloat16,
    }
}
