//! Which layers go to which chunk: the exact partition of least time under a memory cap, or one that the user gives.
//! The embedding is pinned to the first chunk, the final norm and head to the last; chunks without layers are normal.

mod balanced;
mod interval;

pub use balanced::balanced;

use std::ops::Range;

/// What one part of the model costs. Work is in FLOPs or in measured seconds, the same throughout a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCost {
    /// For messages and pictures.
    pub name: String,
    /// Work of F, per microbatch.
    pub forward: f64,
    /// Work of I, per microbatch.
    pub backward_input: f64,
    /// Work of W, per microbatch.
    pub backward_weight: f64,
    /// Bytes of weights, accumulators and moments.
    pub parameter_bytes: u64,
    /// Bytes kept from F to B for each microbatch in flight: its output counts, its input is another part's output.
    pub activation_bytes: u64,
}

impl LayerCost {
    /// Work of F, I and W together.
    pub fn work(&self) -> f64 {
        self.forward + self.backward_input + self.backward_weight
    }
}

/// What a model costs, part by part.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCost {
    /// On the first chunk.
    pub embedding: LayerCost,
    /// Divided among the chunks, in order.
    pub layers: Vec<LayerCost>,
    /// The final norm, the head and the loss, on the last chunk.
    pub head: LayerCost,
    /// Bytes of the activations that one chunk hands to the next, per microbatch; a chunk keeps what it received.
    pub boundary_bytes: u64,
}

impl ModelCost {
    fn parts(&self) -> impl Iterator<Item = &LayerCost> {
        std::iter::once(&self.embedding).chain(&self.layers).chain(std::iter::once(&self.head))
    }

    /// The work of the whole model, per microbatch.
    pub fn work(&self) -> f64 {
        self.parts().map(LayerCost::work).sum()
    }
}

/// The number of layers in every chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Layers per chunk; zero is normal.
    pub layers: Vec<usize>,
}

impl Partition {
    /// The layers of `chunk`: indices into the model's list; empty for a chunk without layers and beyond the last chunk.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        let start = self.layers.iter().take(chunk).sum();
        start..start + self.layers.get(chunk).copied().unwrap_or(0)
    }

    /// The parts of the model that `chunk` holds, embedding and head included.
    pub fn parts<'a>(&self, model: &'a ModelCost, chunk: usize) -> impl Iterator<Item = &'a LayerCost> + use<'a> {
        let first = (chunk == 0).then_some(&model.embedding);
        let last = (chunk + 1 == self.layers.len()).then_some(&model.head);
        first.into_iter().chain(model.layers.get(self.range(chunk)).unwrap_or_default()).chain(last)
    }

    /// The work of one microbatch in `chunk`.
    pub fn work(&self, model: &ModelCost, chunk: usize) -> f64 {
        self.parts(model, chunk).map(LayerCost::work).sum()
    }

    /// Bytes that `chunk` holds with the activations of `in_flight` microbatches.
    pub fn bytes(&self, model: &ModelCost, chunk: usize, in_flight: usize) -> u64 {
        let received = if chunk > 0 { model.boundary_bytes } else { 0 };
        let (parameters, activations) = self.parts(model, chunk).fold((0u64, received), |(p, a), part| {
            (p.saturating_add(part.parameter_bytes), a.saturating_add(part.activation_bytes))
        });
        parameters.saturating_add(activations.saturating_mul(in_flight as u64))
    }
}

/// How much each stage may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes a stage; None for no limit.
    pub cap: Option<u64>,
    /// The microbatches whose activations each stage holds at once, one number a stage (see
    /// [`Schedule::in_flight`](crate::Schedule::in_flight)). Not read without a cap.
    pub in_flight: Vec<usize>,
}

/// Why there is no partition.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// No stage at all.
    #[error("a partition needs at least one stage, got 0")]
    NoStages,
    /// A given list for another number of stages.
    #[error("the partition {layers:?} lists {} stages but the pipeline has {stages}: give one number of layers a stage", .layers.len())]
    Stages {
        /// As given.
        layers: Vec<usize>,
        /// In the pipeline.
        stages: usize,
    },
    /// A given list for another number of layers.
    #[error(
        "the partition {layers:?} adds up to {sum} layers but the model has {model}: change the numbers so that they do"
    )]
    Sum {
        /// As given.
        layers: Vec<usize>,
        /// Their sum.
        sum: usize,
        /// In the model.
        model: usize,
    },
    /// A cap without one in-flight number a stage.
    #[error(
        "the memory limit lists in-flight microbatches for {given} stages but the pipeline has {stages}: give one number a stage"
    )]
    InFlight {
        /// In the limit.
        given: usize,
        /// In the pipeline.
        stages: usize,
    },
    /// A cost that can't be compared.
    #[error("the cost of {part} is {work}: it has to be a finite number, zero or more")]
    Cost {
        /// The part's name.
        part: String,
        /// Its work.
        work: f64,
    },
    /// The model is too big.
    #[error(
        "stage {stage} doesn't fit: with {layers} layers and the activations of {in_flight} microbatches it holds \
         {needed} bytes, {over} more than the limit of {cap}, and every other partition exceeds it by as much or more: \
         raise the limit, use more stages, or smaller microbatches"
    )]
    Memory {
        /// The stage that is over, in the partition that exceeds the limit least.
        stage: usize,
        /// Its layers there.
        layers: usize,
        /// Its microbatches in flight.
        in_flight: usize,
        /// What it holds, in bytes.
        needed: u64,
        /// By how many bytes that is too much.
        over: u64,
        /// The limit, in bytes.
        cap: u64,
    },
}

/// The partition that the user gave, if it fits model and pipeline.
///
/// # Errors
/// If the list's length is not the number of stages, or its sum not the number of layers.
pub fn explicit(model: &ModelCost, layers: &[usize], stages: usize) -> Result<Partition, PartitionError> {
    let list = || layers.to_vec();
    if layers.len() != stages {
        return Err(PartitionError::Stages { layers: list(), stages });
    }
    let sum = layers.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if sum != model.layers.len() {
        return Err(PartitionError::Sum { layers: list(), sum, model: model.layers.len() });
    }
    Ok(Partition { layers: list() })
}

/// How evenly the work is spread: work / (stages x slowest stage's work), 1 at best.
pub fn balance(model: &ModelCost, partition: &Partition) -> f64 {
    let stages = partition.layers.len();
    let slowest = (0..stages).map(|chunk| partition.work(model, chunk)).fold(0.0, f64::max);
    if slowest > 0.0 { model.work() / (stages as f64 * slowest) } else { 1.0 }
}
