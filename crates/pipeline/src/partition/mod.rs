//! Assigns layers to chunks, the groups of consecutive layers that ranks run. The user gives a partition, or
//! [`balanced_partition`] computes the fastest partition that fits into the ranks' memory. The embedding is pinned to
//! the first chunk, and the final norm and the head to the last chunk. A chunk may have no layers.

mod balanced;
mod costs;
mod memory;

pub use balanced::balanced_partition;
pub use memory::{RankMemory, StageMemory};

use std::ops::Range;

use crate::placement::Placement;
use crate::schedule::Schedule;
use crate::speeds::RankSpeeds;

/// The costs of one module of the model: the embedding, a layer or the head. Work is in FLOPs or in measured seconds,
/// with one unit for the whole model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleCost {
    /// The name for messages and drawings.
    pub name: String,
    /// The work of the forward pass (F), per microbatch.
    pub forward: f64,
    /// The work of the input gradient (I), the first part of a backward pass, per microbatch.
    pub backward_input: f64,
    /// The work of the weight gradients (W), the second part of a backward pass, per microbatch.
    pub backward_weight: f64,
    /// The bytes of weights, accumulators and moments, with all their copies.
    pub parameter_bytes: u64,
    /// The bytes on the next rank that hold copies of the module's parameters, for in-memory checkpoints.
    pub copied_bytes: u64,
    /// The bytes that are kept from F to I (or to a full backward pass, B) for each microbatch in flight. The module's
    /// input is included. Its output is not, because the output counts as the input of the next module.
    pub activation_bytes: u64,
    /// The bytes that are kept from I to W for each microbatch: the inputs of the module's weight gradients.
    pub weight_gradient_bytes: u64,
    /// The maximal number of further bytes that the module's F, B, I or W holds while it runs. A layer reuses the
    /// memory that another layer frees. The embedding and the head do not, because their tensors have other sizes.
    /// [`balanced_partition`] uses the largest value of all layers for every layer.
    pub temporary_bytes: u64,
}

impl ModuleCost {
    /// Returns the work of F, I and W together.
    pub fn work(&self) -> f64 {
        self.forward + self.backward_input + self.backward_weight
    }
}

/// The costs of a model, module by module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCost {
    /// The embedding, on the first chunk.
    pub embedding: ModuleCost,
    /// The layers, divided among the chunks in order.
    pub layers: Vec<ModuleCost>,
    /// The final norm, the head and the loss, on the last chunk.
    pub head: ModuleCost,
    /// The bytes of the activations that one chunk sends to the next, per microbatch.
    pub boundary_bytes: u64,
    /// The bytes that each rank holds independently of its layers. Ranks beyond the list hold no such bytes.
    pub ranks: Vec<RankMemory>,
}

impl ModelCost {
    fn modules(&self) -> impl Iterator<Item = &ModuleCost> {
        std::iter::once(&self.embedding).chain(&self.layers).chain(std::iter::once(&self.head))
    }

    /// Returns the work of the whole model, per microbatch.
    pub fn work(&self) -> f64 {
        self.modules().map(ModuleCost::work).sum()
    }
}

/// The number of layers in each chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// The number of layers of each chunk, which may be 0.
    pub layers: Vec<usize>,
}

impl Partition {
    /// Returns the layers of `chunk` as indices into the model's list. The range is empty for a chunk without layers,
    /// and for an index beyond the last chunk.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        let start = self.layers.iter().take(chunk).sum();
        start..start + self.layers.get(chunk).copied().unwrap_or(0)
    }

    /// Returns the modules of `chunk`, including the embedding and the head.
    pub fn modules_of<'a>(&self, model: &'a ModelCost, chunk: usize) -> impl Iterator<Item = &'a ModuleCost> + use<'a> {
        let first = (chunk == 0).then_some(&model.embedding);
        let last = (chunk + 1 == self.layers.len()).then_some(&model.head);
        first.into_iter().chain(model.layers.get(self.range(chunk)).unwrap_or_default()).chain(last)
    }

    /// Returns the maximal number of temporary bytes that an action of `chunk` holds while it runs: the sum of the
    /// temporary bytes of the chunk's largest layer, its embedding and its head.
    pub(crate) fn temporary_bytes(&self, model: &ModelCost, chunk: usize) -> u64 {
        let layers = model.layers.get(self.range(chunk)).unwrap_or_default();
        let layer = layers.iter().map(|layer| layer.temporary_bytes).max().unwrap_or(0);
        let pinned = self.modules_of(model, chunk).map(|module| module.temporary_bytes).sum::<u64>()
            - layers.iter().map(|layer| layer.temporary_bytes).sum::<u64>();
        layer + pinned
    }

    /// Returns the work of one microbatch in `chunk`.
    pub fn work(&self, model: &ModelCost, chunk: usize) -> f64 {
        self.modules_of(model, chunk).map(ModuleCost::work).sum()
    }

    /// Returns the work of one microbatch in the chunks of each rank.
    pub fn rank_work(&self, model: &ModelCost, placement: &Placement) -> Vec<f64> {
        let work_of_rank = |rank| placement.chunks_of(rank).map(|chunk| self.work(model, chunk)).sum();
        (0..placement.ranks()).map(work_of_rank).collect()
    }

    /// Returns the peak number of bytes that each rank holds under `schedule`.
    pub fn peak_bytes(&self, model: &ModelCost, schedule: &Schedule) -> Vec<u64> {
        self.memory(model, schedule).iter().map(StageMemory::total).collect()
    }
}

/// The reason why a model can't be partitioned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The pipeline has no chunk.
    #[error("a partition needs at least one chunk, got 0")]
    NoChunks,
    /// The explicit list has the wrong number of chunks.
    #[error("the partition {layers:?} lists {} chunks but the pipeline has {chunks}: give one number of layers per chunk", .layers.len())]
    Chunks {
        /// The given list.
        layers: Vec<usize>,
        /// The number of chunks in the pipeline.
        chunks: usize,
    },
    /// The explicit list has the wrong number of layers.
    #[error(
        "the partition {layers:?} adds up to {sum} layers but the model has {model}: change the numbers so that they do"
    )]
    Sum {
        /// The given list.
        layers: Vec<usize>,
        /// The sum of the list.
        sum: usize,
        /// The number of layers in the model.
        model: usize,
    },
    /// A cost is negative or not finite.
    #[error("the cost of {module} is {work}: it has to be a finite number, zero or more")]
    Cost {
        /// The module's name.
        module: String,
        /// The module's work.
        work: f64,
    },
    /// The model does not fit into the memory of the ranks.
    #[error(
        "stage {stage} doesn't fit: with {layers} layers and {in_flight} microbatches in flight it holds {needed_bytes} bytes \
         ({memory}), {excess_bytes} more than the limit of {limit_bytes}: raise the limit to {needed_bytes}, {}{}",
        if *.is_given { "give the stage fewer layers, " } else { "" },
        .memory.remedies()
    )]
    Memory {
        /// Whether the user gives the partition.
        is_given: bool,
        /// The rank that exceeds the limit most. The error describes the given partition, or otherwise the partition
        /// whose largest chunk is smallest.
        stage: usize,
        /// The number of layers in all chunks of the rank.
        layers: usize,
        /// The peak number of the rank's work items in flight.
        in_flight: usize,
        /// The bytes that the rank holds.
        memory: StageMemory,
        /// The sum of `memory`, in bytes.
        needed_bytes: u64,
        /// The excess over the limit, in bytes.
        excess_bytes: u64,
        /// The limit, in bytes.
        limit_bytes: u64,
    },
}

/// Checks the partition that the user gives, and returns it. The partition must fit the model, the pipeline and, under
/// `schedule`, every rank's memory.
///
/// # Errors
/// Returns an error if the list's length is not the number of chunks, if its sum is not the number of layers, or if a
/// rank holds more than `bytes_per_rank`.
pub fn explicit_partition(
    model: &ModelCost,
    layers: &[usize],
    schedule: &Schedule,
    bytes_per_rank: Option<u64>,
) -> Result<Partition, PartitionError> {
    let list = || layers.to_vec();
    let chunks = schedule.placement.chunks();
    if layers.len() != chunks {
        return Err(PartitionError::Chunks { layers: list(), chunks });
    }
    let sum = layers.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if sum != model.layers.len() {
        return Err(PartitionError::Sum { layers: list(), sum, model: model.layers.len() });
    }
    let partition = Partition { layers: list() };
    match bytes_per_rank.and_then(|limit| excess(&partition, model, schedule, limit, true)) {
        Some(error) => Err(error),
        None => Ok(partition),
    }
}

/// Returns the error of a partition in which some rank holds more than `limit_bytes`, or `None` if all ranks fit.
/// `is_given` means that the user gives the partition.
fn excess(
    partition: &Partition,
    model: &ModelCost,
    schedule: &Schedule,
    limit_bytes: u64,
    is_given: bool,
) -> Option<PartitionError> {
    let memory = partition.memory(model, schedule);
    let stage = (0..memory.len()).max_by_key(|&rank| (memory[rank].total(), std::cmp::Reverse(rank)))?;
    let needed_bytes = memory[stage].total();
    (needed_bytes > limit_bytes).then(|| PartitionError::Memory {
        is_given,
        stage,
        layers: schedule.placement.chunks_of(stage).map(|chunk| partition.range(chunk).len()).sum(),
        in_flight: schedule.in_flight().get(stage).copied().unwrap_or(0),
        memory: memory[stage],
        needed_bytes,
        excess_bytes: needed_bytes - limit_bytes,
        limit_bytes,
    })
}

/// Returns how evenly the time is distributed over the chunks, 1 at best: work / (sum of the chunks' speeds x slowest
/// chunk's time).
pub fn balance_ratio(model: &ModelCost, partition: &Partition, placement: &Placement, speeds: &RankSpeeds) -> f64 {
    let speed = |chunk: usize| placement.get_rank(chunk).map_or(1.0, |rank| speeds.of(rank));
    let chunks = 0..partition.layers.len();
    let slowest = chunks.clone().map(|chunk| partition.work(model, chunk) / speed(chunk)).fold(0.0, f64::max);
    if slowest > 0.0 { model.work() / (chunks.map(speed).sum::<f64>() * slowest) } else { 1.0 }
}
