//! Audits find hardware that computes wrong: another stage computes a work item again, bit for bit. A work item is the
//! forward and backward pass of one chunk on one microbatch. This module records the inputs of a work item and the
//! hashes of its results while the step is computed. Disabled, recording costs nothing.

use serde::{Deserialize, Serialize};
use stagecoach_data::MicrobatchLayout;
use stagecoach_kernels::bytes_of;
use stagecoach_model::{Architecture, CuSeqlens, ForwardContext, ModelPart, WeightGradient};
use stagecoach_pipeline::WorkItem;
use tch::{Device, Kind, Tensor};

use super::gradient_sums::AccumulatorGroup;
use super::sequences::sequence_bounds;
use super::{ChunkOutput, LossInputs, Stage};

/// The inputs of a work item besides its layout: tensors on the CPU that are never written to.
#[derive(Debug)]
pub struct WorkInputs {
    /// Token ids, `i64[tokens]`, on the first chunk, else hidden states, `[tokens, hidden]`.
    pub input: Tensor,
    /// Targets, `i64[tokens]`, on the last chunk, else the gradient of the output, `[tokens, hidden]`.
    pub target_or_gradient: Tensor,
    /// `f32[work_numel]`: the chunk's weights, concatenated, then their gradient accumulators as they were before this
    /// item was added.
    pub parameters: Tensor,
}

impl WorkInputs {
    /// BLAKE3 of all tensors, in hex.
    pub fn hash(&self) -> String {
        hash([&self.input, &self.target_or_gradient, &self.parameters])
    }
}

/// The number of values of [`WorkInputs::parameters`] for this part of a model.
pub fn work_numel(architecture: &dyn Architecture, part: &ModelPart) -> i64 {
    2 * architecture.parameter_specs(part).iter().map(|spec| spec.numel() as i64).sum::<i64>()
}

/// BLAKE3 hashes of the results of a work item, in hex.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemDigest {
    /// Hidden states; on the last chunk the loss and the head's accumulator.
    output: String,
    /// The gradient of the input; the hash of no data on the first chunk.
    input_gradient: String,
    /// The accumulators of the chunk's other weights.
    weight_gradients: String,
}

impl ItemDigest {
    /// The first result, in order of computation, that differs; `None` if none does.
    pub fn first_difference(&self, other: &ItemDigest) -> Option<&'static str> {
        let differs = [
            ("output", self.output != other.output),
            ("gradient of the input", self.input_gradient != other.input_gradient),
            ("gradients of the weights", self.weight_gradients != other.weight_gradients),
        ];
        differs.into_iter().find_map(|(name, differs)| differs.then_some(name))
    }
}

/// Records a work item while it is computed.
#[derive(Debug)]
pub(crate) struct WorkRecorder {
    item: WorkItem,
    input: Option<Tensor>,
    target_or_gradient: Option<Tensor>,
    parameters: Tensor,
    result: ItemDigest,
}

impl Stage {
    /// The context that the layers of a microbatch need besides its activations.
    pub(super) fn forward_context(&self, layout: &MicrobatchLayout) -> ForwardContext {
        ForwardContext {
            length: layout.length as i64,
            first_position: 0,
            cu_seqlens: CuSeqlens::new(&sequence_bounds(layout), self.device),
            recompute: self.recompute,
        }
    }

    /// Records `item` in the step that begins.
    pub fn record_work(&mut self, item: WorkItem) {
        let parameters = Tensor::empty([2 * numel(&self.chunk_weights(item.chunk))], (Kind::Float, Device::Cpu));
        self.recorder = Some(WorkRecorder {
            item,
            input: None,
            target_or_gradient: None,
            parameters,
            result: ItemDigest::default(),
        });
    }

    /// The recorded inputs and results; `None` if the step was abandoned before they were complete.
    pub fn take_recorded_work(&mut self) -> Option<(WorkInputs, ItemDigest)> {
        let WorkRecorder { input, target_or_gradient, parameters, result, .. } = self.recorder.take()?;
        Some((WorkInputs { input: input?, target_or_gradient: target_or_gradient?, parameters }, result))
    }

    /// Computes a work item of `chunk` from the inputs that another stage has recorded. The method overwrites weights
    /// and accumulators: call it only on a stage that is built for audits alone.
    pub fn recompute(
        &mut self,
        chunk: usize,
        inputs: &WorkInputs,
        layout: &MicrobatchLayout,
        target_count: u64,
    ) -> ItemDigest {
        let weights = self.chunk_weights(chunk);
        let tensors =
            weights.iter().map(|weight| &weight.value).chain(weights.iter().map(|weight| &weight.accumulator));
        let mut offset = 0;
        for tensor in tensors {
            let numel = tensor.numel() as i64;
            tensor.shallow_clone().copy_(&inputs.parameters.narrow(0, offset, numel).view_as(tensor));
            offset += numel;
        }
        let ctx = self.forward_context(layout);
        let layers = &self.chunks[&chunk];
        // copies: layers may reuse the memory
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

    /// If `item` is recorded, copies the input, targets, weights and the head's accumulators, to which the forward pass
    /// adds, to the host.
    pub(super) fn record_input(&mut self, item: WorkItem, input: &Tensor, targets: Option<&Tensor>) {
        if !self.is_recorded(item) {
            return;
        }
        let weights = self.chunk_weights(item.chunk);
        let (numel, heads) = (numel(&weights), numel(weights.iter().filter(|weight| weight.is_head)));
        let has_head = self.chunks[&item.chunk].head.is_some();
        let Some(recorder) = &mut self.recorder else { return };
        recorder.input = Some(on_cpu(input));
        if has_head {
            recorder.target_or_gradient = targets.map(on_cpu);
        }
        let values = weights.iter().map(|weight| &weight.value);
        copy_into(&recorder.parameters.narrow(0, 0, numel), values);
        let head = weights.iter().filter(|weight| weight.is_head).map(|weight| &weight.accumulator);
        copy_into(&recorder.parameters.narrow(0, 2 * numel - heads, heads), head);
    }

    /// Stores the hash of the output.
    pub(super) fn record_output(&mut self, item: WorkItem, output: &ChunkOutput) {
        if self.is_recorded(item) {
            let output = self.output_hash(output);
            if let Some(recorder) = &mut self.recorder {
                recorder.result.output = output;
            }
        }
    }

    /// Copies the gradient of the output.
    pub(super) fn record_output_gradient(&mut self, item: WorkItem, dy: Option<&Tensor>) {
        if let (Some(recorder), Some(dy)) = (self.recorder_of(item), dy) {
            recorder.target_or_gradient = Some(on_cpu(dy));
        }
    }

    /// Stores the hash of the input gradient.
    pub(super) fn record_input_gradient(&mut self, item: WorkItem, dx: Option<&Tensor>) {
        if let Some(recorder) = self.recorder_of(item) {
            recorder.result.input_gradient = hash(dx);
        }
    }

    /// Copies the accumulators before the weight gradients are added.
    pub(super) fn record_accumulators(&mut self, item: WorkItem) {
        if !self.is_recorded(item) {
            return;
        }
        let weights = self.chunk_weights(item.chunk);
        let numel = numel(&weights);
        if let Some(recorder) = &self.recorder {
            let sums = weights.iter().filter(|weight| !weight.is_head).map(|weight| &weight.accumulator);
            copy_into(&recorder.parameters.narrow(0, numel, numel), sums);
        }
    }

    /// Stores the hash of the weight gradients.
    pub(super) fn record_weight_gradients(&mut self, item: WorkItem) {
        if self.is_recorded(item) {
            let gradients = self.weight_gradients_hash(item.chunk);
            if let Some(recorder) = &mut self.recorder {
                recorder.result.weight_gradients = gradients;
            }
        }
    }

    fn recorder_of(&mut self, item: WorkItem) -> Option<&mut WorkRecorder> {
        self.recorder.as_mut().filter(|recorder| recorder.item == item)
    }

    fn is_recorded(&self, item: WorkItem) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.item == item)
    }

    /// The weights of a chunk in a fixed order, the head's last.
    fn chunk_weights(&self, chunk: usize) -> Vec<ChunkWeight> {
        let has_head = self.chunks[&chunk].head.is_some();
        let of = |weights, is_head| {
            self.gradient_sums.accumulators(weights).iter().map(move |(parameter, accumulator)| ChunkWeight {
                value: self.parameters[*parameter].as_read().shallow_clone(),
                accumulator: accumulator.shallow_clone(),
                is_head,
            })
        };
        let head = of(AccumulatorGroup::Head, true).filter(|_| has_head);
        of(AccumulatorGroup::Chunk(chunk), false).chain(head).collect()
    }

    fn weight_gradients_hash(&self, chunk: usize) -> String {
        hash(self.gradient_sums.accumulators(AccumulatorGroup::Chunk(chunk)).iter().map(|(_, sum)| sum))
    }

    fn output_hash(&self, output: &ChunkOutput) -> String {
        match output {
            ChunkOutput::Activations(y) => hash([y]),
            ChunkOutput::Loss(loss) => {
                let head = self.gradient_sums.accumulators(AccumulatorGroup::Head).iter().map(|(_, sum)| sum);
                hash(std::iter::once(loss).chain(head))
            }
        }
    }
}

/// A weight of a chunk.
struct ChunkWeight {
    /// The copy that layers read, not the fp32 master, which is stale on replicas that do not own the weight.
    value: Tensor,
    accumulator: Tensor,
    is_head: bool,
}

/// The number of values of the weights.
fn numel<'a>(weights: impl IntoIterator<Item = &'a ChunkWeight>) -> i64 {
    weights.into_iter().map(|weight| weight.value.numel() as i64).sum()
}

/// A copy on the CPU: layers may reuse the memory.
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

/// BLAKE3 of tensors' bytes, in hex.
fn hash<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        let tensor = tensor.to_device(Device::Cpu).contiguous();
        // SAFETY: contiguous and on the CPU; nothing writes to it meanwhile.
        hasher.update(unsafe { &*bytes_of(&tensor) });
    }
    hasher.finalize().to_hex().to_string()
}
