//! The partition with the fastest slowest stage, found exactly.

use super::interval::min_total_split;
use super::{MemoryBudget, ModelCost, ModuleCost, Partition, PartitionError};
use std::ops::Range;

/// Divides the layers so that the slowest stage (F, I and W together) is as fast as possible within the memory limit.
/// Of several such partitions, the one with the smallest sum of squared stage times; of those, the lexicographically
/// smallest.
///
/// # Errors
/// If there is no stage, a cost is negative or not finite, or no partition fits: then the stage that exceeds the limit,
/// and by how much, in the partition that exceeds it least.
pub fn balanced_partition(
    model: &ModelCost,
    stages: usize,
    memory: &MemoryBudget,
) -> Result<Partition, PartitionError> {
    if stages == 0 {
        return Err(PartitionError::NoStages);
    }
    if memory.bytes_per_stage.is_some() && memory.in_flight.len() != stages {
        return Err(PartitionError::InFlight { given: memory.in_flight.len(), stages });
    }
    let table = CostTable::new(model, stages, memory)?;
    let layers = model.layers.len();
    let fits = |stage, range: Range<usize>| {
        memory.bytes_per_stage.is_none_or(|limit| table.bytes(stage, range) <= u128::from(limit))
    };
    let work = |stage, range: Range<usize>| fits(stage, range.clone()).then(|| table.work(stage, range));
    let Some((slowest, _)) = min_total_split(stages, layers, work, u128::max) else {
        return Err(memory_error(&table, layers, memory));
    };
    let square = |stage, range| work(stage, range).filter(|work| *work <= slowest).map(|work| work * work);
    match min_total_split(stages, layers, square, |a, b| a + b) {
        Some((_, layers)) => Ok(Partition { layers }),
        // Unreachable: the partition that gave `slowest` passes the filter.
        None => Err(memory_error(&table, layers, memory)),
    }
}

/// Sums over intervals of layers, as differences of prefix sums.
///
/// Work is held in fixed point: floating-point sums of the same layers differ in their last bits with the order of
/// adding, and ties must be ties. The unit is a power of two that makes the whole less than 2^61, so squares fit 128
/// bits, and whole numbers stay exact (up to 2^53 per module with 254 layers).
struct CostTable<'a> {
    work: Vec<u128>,
    parameters: Vec<u128>,
    activations: Vec<u128>,
    pinned_costs: [(u128, &'a ModuleCost); 2],
    boundary: u64,
    stages: usize,
    in_flight: &'a [usize],
}

impl<'a> CostTable<'a> {
    fn new(model: &'a ModelCost, stages: usize, memory: &'a MemoryBudget) -> Result<Self, PartitionError> {
        let mut largest = 0.0f64;
        for module in model.modules() {
            for work in [module.forward, module.backward_input, module.backward_weight, module.work()] {
                if !(work.is_finite() && work >= 0.0) {
                    return Err(PartitionError::Cost { module: module.name.clone(), work });
                }
            }
            largest = largest.max(module.work());
        }
        // Both logarithms are rounded up. Scaling in two steps cannot overflow.
        let bits =
            61 - largest.log2().ceil().max(-1022.0) as i32 - (model.layers.len() as f64 + 2.0).log2().ceil() as i32;
        let (half, rest) = (bits / 2, bits - bits / 2);
        let fixed = |module: &ModuleCost| (module.work() * 2f64.powi(half) * 2f64.powi(rest)).round() as u128;
        let layers = &model.layers;
        Ok(CostTable {
            work: prefix_sums(layers, fixed),
            parameters: prefix_sums(layers, |layer| u128::from(layer.parameter_bytes)),
            activations: prefix_sums(layers, |layer| u128::from(layer.activation_bytes)),
            pinned_costs: [&model.embedding, &model.head].map(|module| (fixed(module), module)),
            boundary: model.boundary_bytes,
            stages,
            in_flight: &memory.in_flight,
        })
    }

    /// The modules pinned to a stage.
    fn pinned_modules(&self, stage: usize) -> impl Iterator<Item = &(u128, &'a ModuleCost)> {
        let here = [stage == 0, stage + 1 == self.stages];
        self.pinned_costs.iter().zip(here).filter(|(_, here)| *here).map(|(end, _)| end)
    }

    fn work(&self, stage: usize, range: Range<usize>) -> u128 {
        let pinned: u128 = self.pinned_modules(stage).map(|(work, _)| work).sum();
        self.work[range.end] - self.work[range.start] + pinned
    }

    /// As [`Partition::bytes`], in constant time.
    fn bytes(&self, stage: usize, range: Range<usize>) -> u128 {
        let mut parameters = self.parameters[range.end] - self.parameters[range.start];
        let mut activations = self.activations[range.end] - self.activations[range.start];
        if stage > 0 {
            activations += u128::from(self.boundary);
        }
        for (_, module) in self.pinned_modules(stage) {
            parameters += u128::from(module.parameter_bytes);
            activations += u128::from(module.activation_bytes);
        }
        let in_flight = self.in_flight.get(stage).copied().unwrap_or(0);
        parameters.saturating_add(activations.saturating_mul(in_flight as u128))
    }
}

fn prefix_sums(layers: &[ModuleCost], of: impl Fn(&ModuleCost) -> u128) -> Vec<u128> {
    let sums = layers.iter().scan(0, |sum, layer| {
        *sum += of(layer);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Names the stage with the most memory, in the partition that minimises it.
fn memory_error(table: &CostTable<'_>, layers: usize, memory: &MemoryBudget) -> PartitionError {
    let bytes = |stage, range| Some(table.bytes(stage, range));
    let lengths =
        min_total_split(table.stages, layers, bytes, u128::max).map(|(_, lengths)| lengths).unwrap_or_default();
    let partition = Partition { layers: lengths };
    let needed = |stage: &usize| table.bytes(*stage, partition.range(*stage));
    let stage = (0..table.stages).max_by_key(|stage| (needed(stage), std::cmp::Reverse(*stage))).unwrap_or(0);
    let saturate = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let limit_bytes = memory.bytes_per_stage.unwrap_or(u64::MAX);
    PartitionError::Memory {
        stage,
        layers: partition.range(stage).len(),
        in_flight: memory.in_flight.get(stage).copied().unwrap_or(0),
        needed_bytes: saturate(needed(&stage)),
        excess_bytes: saturate(needed(&stage).saturating_sub(u128::from(limit_bytes))),
        limit_bytes,
    }
}
