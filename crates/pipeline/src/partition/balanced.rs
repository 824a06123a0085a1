//! The partition whose slowest stage is fastest, found exactly.

use super::interval::least;
use super::{LayerCost, Memory, ModelCost, Partition, PartitionError};
use std::ops::Range;

/// Divides the layers so that the slowest stage (F, I and W together) is as fast as possible within the memory cap. Of
/// several such partitions, the one with the smallest sum of squared stage times; of those, the lexicographically smallest.
///
/// # Errors
/// If there is no stage, a cost is negative or not finite, or no partition fits: then the stage that is over the cap, and
/// by how much, in the partition that exceeds it least.
pub fn balanced(model: &ModelCost, stages: usize, memory: &Memory) -> Result<Partition, PartitionError> {
    if stages == 0 {
        return Err(PartitionError::NoStages);
    }
    if memory.cap.is_some() && memory.in_flight.len() != stages {
        return Err(PartitionError::InFlight { given: memory.in_flight.len(), stages });
    }
    let table = Table::new(model, stages, memory)?;
    let layers = model.layers.len();
    let fits = |stage, range: Range<usize>| memory.cap.is_none_or(|cap| table.bytes(stage, range) <= u128::from(cap));
    let work = |stage, range: Range<usize>| fits(stage, range.clone()).then(|| table.work(stage, range));
    let Some((slowest, _)) = least(stages, layers, work, u128::max) else {
        return Err(too_big(&table, layers, memory));
    };
    let square = |stage, range| work(stage, range).filter(|work| *work <= slowest).map(|work| work * work);
    match least(stages, layers, square, |a, b| a + b) {
        Some((_, layers)) => Ok(Partition { layers }),
        // Unreachable: the partition behind `slowest` passes the filter.
        None => Err(too_big(&table, layers, memory)),
    }
}

/// Sums over intervals of layers, as differences of prefix sums.
///
/// Work is held in fixed point: floating-point sums of the same layers differ in their last bits with the order of
/// adding, and ties must be ties. The unit is a power of two that makes the whole less than 2^61, so squares fit 128
/// bits, and whole numbers stay exact (up to 2^53 a part with 254 layers).
struct Table<'a> {
    work: Vec<u128>,
    parameters: Vec<u128>,
    activations: Vec<u128>,
    ends: [(u128, &'a LayerCost); 2],
    boundary: u64,
    stages: usize,
    in_flight: &'a [usize],
}

impl<'a> Table<'a> {
    fn new(model: &'a ModelCost, stages: usize, memory: &'a Memory) -> Result<Self, PartitionError> {
        let mut largest = 0.0f64;
        for part in model.parts() {
            for work in [part.forward, part.backward_input, part.backward_weight, part.work()] {
                if !(work.is_finite() && work >= 0.0) {
                    return Err(PartitionError::Cost { part: part.name.clone(), work });
                }
            }
            largest = largest.max(part.work());
        }
        // Both logarithms are rounded up. Scaling in two steps cannot overflow.
        let bits =
            61 - largest.log2().ceil().max(-1022.0) as i32 - (model.layers.len() as f64 + 2.0).log2().ceil() as i32;
        let (half, rest) = (bits / 2, bits - bits / 2);
        let fixed = |part: &LayerCost| (part.work() * 2f64.powi(half) * 2f64.powi(rest)).round() as u128;
        let layers = &model.layers;
        Ok(Table {
            work: prefix_sums(layers, fixed),
            parameters: prefix_sums(layers, |layer| u128::from(layer.parameter_bytes)),
            activations: prefix_sums(layers, |layer| u128::from(layer.activation_bytes)),
            ends: [&model.embedding, &model.head].map(|part| (fixed(part), part)),
            boundary: model.boundary_bytes,
            stages,
            in_flight: &memory.in_flight,
        })
    }

    /// The pinned parts of a stage.
    fn pinned(&self, stage: usize) -> impl Iterator<Item = &(u128, &'a LayerCost)> {
        let here = [stage == 0, stage + 1 == self.stages];
        self.ends.iter().zip(here).filter(|(_, here)| *here).map(|(end, _)| end)
    }

    fn work(&self, stage: usize, range: Range<usize>) -> u128 {
        let pinned: u128 = self.pinned(stage).map(|(work, _)| work).sum();
        self.work[range.end] - self.work[range.start] + pinned
    }

    /// As [`Partition::bytes`], in constant time.
    fn bytes(&self, stage: usize, range: Range<usize>) -> u128 {
        let mut parameters = self.parameters[range.end] - self.parameters[range.start];
        let mut activations = self.activations[range.end] - self.activations[range.start];
        if stage > 0 {
            activations += u128::from(self.boundary);
        }
        for (_, part) in self.pinned(stage) {
            parameters += u128::from(part.parameter_bytes);
            activations += u128::from(part.activation_bytes);
        }
        let in_flight = self.in_flight.get(stage).copied().unwrap_or(0);
        parameters.saturating_add(activations.saturating_mul(in_flight as u128))
    }
}

fn prefix_sums(layers: &[LayerCost], of: impl Fn(&LayerCost) -> u128) -> Vec<u128> {
    let sums = layers.iter().scan(0, |sum, layer| {
        *sum += of(layer);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Names the fullest stage of the partition whose fullest stage is least full.
fn too_big(table: &Table<'_>, layers: usize, memory: &Memory) -> PartitionError {
    let bytes = |stage, range| Some(table.bytes(stage, range));
    let lengths = least(table.stages, layers, bytes, u128::max).map(|(_, lengths)| lengths).unwrap_or_default();
    let partition = Partition { layers: lengths };
    let needed = |stage: &usize| table.bytes(*stage, partition.range(*stage));
    let stage = (0..table.stages).max_by_key(|stage| (needed(stage), std::cmp::Reverse(*stage))).unwrap_or(0);
    let clip = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let cap = memory.cap.unwrap_or(u64::MAX);
    PartitionError::Memory {
        stage,
        layers: partition.range(stage).len(),
        in_flight: memory.in_flight.get(stage).copied().unwrap_or(0),
        needed: clip(needed(&stage)),
        over: clip(needed(&stage).saturating_sub(u128::from(cap))),
        cap,
    }
}
