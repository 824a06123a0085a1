//! Audits detect hardware that computes wrong results: another stage computes a work item a second time, and both
//! results must agree bit for bit. A work item is the forward and backward pass of one chunk on one microbatch. This
//! module records the inputs of a work item and the hashes of its results during the step. A step without an audit has
//! no overhead.

use serde::{Deserialize, Serialize};
use stagecoach_data::MicrobatchLayout;
use stagecoach_kernels::bytes_of;
use stagecoach_model::{Architecture, CuSeqlens, ForwardContext, ModelPart, ParameterSpec, WeightGradient};
use stagecoach_pipeline::WorkItem;
use tch::{Device, Kind, Tensor};

use super::gradients::AccumulatorGroup;
use super::sequences::sequence_bounds;
use super::{ChunkOutput, LossInputs, Stage, StepProbe};

/// The inputs of a work item except its [`MicrobatchLayout`]. The tensors are on the CPU, and no code changes them.
#[derive(Debug)]
pub struct WorkInputs {
    /// The token ids, `i64[tokens]`, on the first chunk; on later chunks the hidden states, `[tokens, hidden]`.
    pub input: Tensor,
    /// The targets, `i64[tokens]`, on the last chunk; on earlier chunks the gradient of the output, `[tokens, hidden]`.
    pub target_or_gradient: Tensor,
    /// `f32[work_numel]`: the chunk's frozen weights and its parameters, concatenated, then the gradient accumulators
    /// of the parameters as they are before this item's gradients are added.
    pub parameters: Tensor,
}

impl WorkInputs {
    /// Returns the BLAKE3 hash of all tensors, in hex.
    pub fn hash(&self) -> String {
        hash([&self.input, &self.target_or_gradient, &self.parameters])
    }
}

/// Returns the number of values of [`WorkInputs::parameters`] for this part of a model.
pub fn work_numel(architecture: &dyn Architecture, part: &ModelPart) -> i64 {
    let numel = |specs: Vec<ParameterSpec>| specs.iter().map(|spec| spec.numel() as i64).sum::<i64>();
    numel(architecture.frozen_specs(part)) + 2 * numel(architecture.parameter_specs(part))
}

/// The BLAKE3 hashes of the results of a work item, in hex.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemDigest {
    /// The hash of the output: the hidden states, or on the last chunk the loss and the head's accumulator.
    output: String,
    /// The hash of the input's gradient; on the first chunk the hash of no data.
    input_gradient: String,
    /// The hash of the accumulators of the chunk's weights, except the head's.
    weight_gradients: String,
}

impl ItemDigest {
    /// Returns the name of the first result, in order of computation, that differs; `None` if all results are equal.
    pub fn first_difference(&self, other: &ItemDigest) -> Option<&'static str> {
        let differs = [
            ("output", self.output != other.output),
            ("gradient of the input", self.input_gradient != other.input_gradient),
            ("gradients of the weights", self.weight_gradients != other.weight_gradients),
        ];
        differs.into_iter().find_map(|(name, differs)| differs.then_some(name))
    }
}

/// A recorder of a work item during its computation.
#[derive(Debug)]
pub struct WorkRecorder {
    item: WorkItem,
    input: Option<Tensor>,
    target_or_gradient: Option<Tensor>,
    parameters: Tensor,
    result: ItemDigest,
}

impl WorkRecorder {
    /// Creates a recorder of `item` in the next step of `stage`.
    pub fn new(item: WorkItem, stage: &Stage) -> WorkRecorder {
        let numel = stage.chunks[&item.chunk].frozen_numel() + 2 * numel(&stage.chunk_weights(item.chunk));
        let parameters = Tensor::empty([numel], (Kind::Float, Device::Cpu));
        WorkRecorder { item, input: None, target_or_gradient: None, parameters, result: ItemDigest::default() }
    }

    /// Returns the recorded inputs and results; `None` if an abandoned step left them incomplete.
    pub fn finish(self) -> Option<(WorkInputs, ItemDigest)> {
        let WorkRecorder { input, target_or_gradient, parameters, result, .. } = self;
        Some((WorkInputs { input: input?, target_or_gradient: target_or_gradient?, parameters }, result))
    }
}

impl StepProbe for WorkRecorder {
    /// Copies the input, the targets, the weights and the head's accumulator to the host. The head's accumulator is
    /// copied here, because the forward pass already adds to it. `accumulation_begins` copies the other accumulators.
    fn forward_begins(&mut self, stage: &Stage, item: WorkItem, input: &Tensor, targets: Option<&Tensor>) {
        if item != self.item {
            return;
        }
        let weights = stage.chunk_weights(item.chunk);
        let (numel, heads) = (numel(&weights), numel(weights.iter().filter(|weight| weight.is_head)));
        self.input = Some(on_cpu(input));
        if stage.chunks[&item.chunk].head.is_some() {
            self.target_or_gradient = targets.map(on_cpu);
        }
        let frozen = stage.chunks[&item.chunk].frozen_numel();
        let values = stage.chunks[&item.chunk].frozen.iter().chain(weights.iter().map(|weight| &weight.value));
        copy_into(&self.parameters.narrow(0, 0, frozen + numel), values);
        let head = weights.iter().filter(|weight| weight.is_head).map(|weight| &weight.accumulator);
        copy_into(&self.parameters.narrow(0, frozen + 2 * numel - heads, heads), head);
    }

    fn forward_ends(&mut self, stage: &Stage, item: WorkItem, output: &ChunkOutput) {
        if item == self.item {
            self.result.output = stage.output_hash(output);
        }
    }

    fn backward_begins(&mut self, _: &Stage, item: WorkItem, dy: Option<&Tensor>) {
        if let (true, Some(dy)) = (item == self.item, dy) {
            self.target_or_gradient = Some(on_cpu(dy));
        }
    }

    fn backward_ends(&mut self, _: &Stage, item: WorkItem, dx: Option<&Tensor>) {
        if item == self.item {
            self.result.input_gradient = hash(dx);
        }
    }

    /// Copies the accumulators before the weight gradients are added.
    fn accumulation_begins(&mut self, stage: &Stage, item: WorkItem) {
        if item == self.item {
            let weights = stage.chunk_weights(item.chunk);
            let (frozen, numel) = (stage.chunks[&item.chunk].frozen_numel(), numel(&weights));
            let sums = weights.iter().filter(|weight| !weight.is_head).map(|weight| &weight.accumulator);
            copy_into(&self.parameters.narrow(0, frozen + numel, numel), sums);
        }
    }

    fn accumulation_ends(&mut self, stage: &Stage, item: WorkItem) {
        if item == self.item {
            self.result.weight_gradients = stage.weight_gradients_hash(item.chunk);
        }
    }
}

impl Stage {
    /// Returns the context that the layers need for a microbatch, in addition to the activations.
    pub(super) fn forward_context(&self, layout: &MicrobatchLayout) -> ForwardContext {
        ForwardContext {
            length: layout.length as i64,
            first_position: 0,
            cu_seqlens: CuSeqlens::new(&sequence_bounds(layout), self.device),
            recompute: self.activations.recompute,
        }
    }

    /// Computes a work item of `chunk` from the inputs that another stage has recorded. The method overwrites weights
    /// and accumulators, so the stage must be built for audits alone.
    pub fn recompute(
        &mut self,
        chunk: usize,
        inputs: &WorkInputs,
        layout: &MicrobatchLayout,
        target_count: u64,
    ) -> ItemDigest {
        let weights = self.chunk_weights(chunk);
        let frozen = self.chunks[&chunk].frozen.iter();
        let tensors = frozen
            .chain(weights.iter().map(|weight| &weight.value))
            .chain(weights.iter().map(|weight| &weight.accumulator));
        let mut offset = 0;
        for tensor in tensors {
            let numel = tensor.numel() as i64;
            tensor.shallow_clone().copy_(&inputs.parameters.narrow(0, offset, numel).view_as(tensor));
            offset += numel;
        }
        let ctx = self.forward_context(layout);
        let layers = &self.chunks[&chunk];
        // the layers get copies, because they may reuse the memory of their inputs
        let copy = |tensor: &Tensor| tensor.copy().to_device(self.device);
        let (input, target_or_gradient) = (copy(&inputs.input), copy(&inputs.target_or_gradient));
        let scale = 1.0 / target_count as f64;
        let loss_inputs = layers.head.is_some().then_some(LossInputs { targets: &target_or_gradient, scale });
        let (output, saved) = layers.forward(input, ctx, loss_inputs);
        let output = self.output_hash(&output);
        let dy = layers.head.is_none().then_some(target_or_gradient);
        let dx = layers.backward(saved, dy, &mut WeightGradient::accumulate);
        ItemDigest { output, input_gradient: hash(&dx), weight_gradients: self.weight_gradients_hash(chunk) }
    }

    /// Returns the weights of a chunk in a fixed order, the head's weight last.
    fn chunk_weights(&self, chunk: usize) -> Vec<ChunkWeight> {
        let has_head = self.chunks[&chunk].head.is_some();
        let accumulated = |weights, is_head| {
            self.gradients.sums.accumulators(weights).iter().map(move |(parameter, accumulator)| ChunkWeight {
                value: self.parameters[*parameter].as_read().shallow_clone(),
                accumulator: accumulator.shallow_clone(),
                is_head,
            })
        };
        let head = accumulated(AccumulatorGroup::Head, true).filter(|_| has_head);
        accumulated(AccumulatorGroup::Chunk(chunk), false).chain(head).collect()
    }

    fn weight_gradients_hash(&self, chunk: usize) -> String {
        hash(self.gradients.sums.accumulators(AccumulatorGroup::Chunk(chunk)).iter().map(|(_, sum)| sum))
    }

    fn output_hash(&self, output: &ChunkOutput) -> String {
        match output {
            ChunkOutput::Activations(y) => hash([y]),
            ChunkOutput::Loss(loss) => {
                let head = self.gradients.sums.accumulators(AccumulatorGroup::Head).iter().map(|(_, sum)| sum);
                hash(std::iter::once(&loss.sum).chain(head))
            }
        }
    }
}

/// A weight of a chunk, with its gradient accumulator.
struct ChunkWeight {
    /// The copy of the weight that the layers read. The fp32 master weight can't serve here, because it is outdated on
    /// replicas whose optimizer does not update the weight.
    value: Tensor,
    accumulator: Tensor,
    is_head: bool,
}

/// Returns the number of values of the weights.
fn numel<'a>(weights: impl IntoIterator<Item = &'a ChunkWeight>) -> i64 {
    weights.into_iter().map(|weight| weight.value.numel() as i64).sum()
}

/// Returns a copy on the CPU, because layers may reuse the memory of `tensor`.
fn on_cpu(tensor: &Tensor) -> Tensor {
    match tensor.device() {
        Device::Cpu => tensor.copy(),
        _ => tensor.to_device(Device::Cpu),
    }
}

/// Copies tensors into `buffer`, concatenated.
fn copy_into<'a>(buffer: &Tensor, tensors: impl Iterator<Item = &'a Tensor>) {
    let mut offset = 0;
    for tensor in tensors {
        let numel = tensor.numel() as i64;
        buffer.narrow(0, offset, numel).copy_(&tensor.reshape([-1]));
        offset += numel;
    }
}

/// Returns the BLAKE3 hash of the tensors' bytes, in hex.
fn hash<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        let tensor = tensor.to_device(Device::Cpu).contiguous();
        // SAFETY: the tensor is contiguous and on the CPU, and no code writes to it during this call.
        hasher.update(unsafe { &*bytes_of(&tensor) });
    }
    hasher.finalize().to_hex().to_string()
}
