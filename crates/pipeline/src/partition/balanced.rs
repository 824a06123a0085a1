//! Finds the partition whose slowest chunk is fastest, within the memory of each rank.

use std::ops::Range;

use super::{ModelCost, ModuleCost, Partition, PartitionError, RankMemory, excess};
use crate::activation_memory::microbatches_held;
use crate::schedule::Schedule;
use crate::speeds::{FASTEST, RankSpeeds};

/// Divides the layers so that the slowest chunk is as fast as possible, and every rank holds at most `bytes_per_rank`
/// bytes under `schedule`. A chunk's time is its work divided by its rank's speed. Among several such partitions, the
/// result has the smallest sum of squared chunk times. Among those with the smallest sum, the result is the
/// lexicographically smallest.
///
/// With one chunk per rank and no copies of parameters, or without a limit, the result is exact. Otherwise, several
/// chunks share a rank's memory, or the rank holds copies of the previous rank's parameters (in-memory checkpoints). On
/// each rank that exceeds the limit, a heuristic then shrinks the chunk whose layers hold most bytes, until all ranks
/// fit. The result may be slower than the fastest partition. The heuristic may also miss a partition that fits.
///
/// # Errors
/// Returns an error if there is no chunk, if a cost is negative or not finite, or if no partition that fits was found.
/// If none was found, the error describes the partition whose largest chunk has the fewest bytes, and names the rank
/// that exceeds the limit most.
pub fn balanced_partition(
    model: &ModelCost,
    schedule: &Schedule,
    bytes_per_rank: Option<u64>,
    speeds: &RankSpeeds,
) -> Result<Partition, PartitionError> {
    let chunks = schedule.placement.chunks();
    if chunks == 0 {
        return Err(PartitionError::NoChunks);
    }
    let table = CostTable::new(model, schedule, speeds)?;
    let mut limits = vec![bytes_per_rank.map(u128::from); chunks];
    while let Some(partition) = table.fastest(&limits) {
        let Some(limit) = bytes_per_rank else { return Ok(partition) };
        let peaks = partition.peak_bytes(model, schedule);
        let overfull: Vec<usize> = (0..peaks.len()).filter(|&rank| peaks[rank] > limit).collect();
        if overfull.is_empty() {
            return Ok(partition);
        }
        let largest = |rank: usize| table.largest(schedule.placement.chunks_of(rank), &partition);
        // a rank that is overfull without layers stays overfull
        let Some(largest) = overfull.into_iter().map(largest).collect::<Option<Vec<usize>>>() else { break };
        for chunk in largest {
            limits[chunk] = table.bytes(chunk, partition.range(chunk)).checked_sub(1);
        }
    }
    // the error names a higher limit, with which the search would find this partition
    let smallest = table.smallest().ok_or(PartitionError::NoChunks)?;
    excess(&smallest, model, schedule, bytes_per_rank.unwrap_or(u64::MAX), false).map_or(Ok(smallest), Err)
}

/// Sums over intervals of layers, as differences of prefix sums.
///
/// Work is stored in fixed point, because equal sums must compare equal. Floating-point sums of the same layers differ
/// in their last bits if the order of addition differs. The unit is a power of two that makes the time of the whole
/// model on the slowest rank less than 2^61. Squares therefore fit 128 bits. If all ranks are equally fast, whole
/// numbers of work stay exact (up to 2^53 per module in a model of 254 layers).
struct CostTable<'a> {
    work: Vec<u128>,
    parameters: Vec<u128>,
    activations: Vec<u128>,
    weight_gradients: Vec<u128>,
    /// The embedding and the head, with their work in fixed point. They are pinned to the first and the last chunk.
    pinned_costs: [(u128, &'a ModuleCost); 2],
    /// The largest `temporary_bytes` of all layers.
    layer_temporaries: u64,
    /// The bytes that each chunk's rank holds independently of its layers.
    ranks: Vec<RankMemory>,
    /// The speed of each chunk's rank, in thousandths of the fastest.
    thousandths: Vec<u16>,
    layers: usize,
    /// The result of [`microbatches_held`] for each chunk.
    held: Vec<Vec<(u64, u64)>>,
}

impl<'a> CostTable<'a> {
    fn new(model: &'a ModelCost, schedule: &Schedule, speeds: &RankSpeeds) -> Result<Self, PartitionError> {
        let mut largest = 0.0f64;
        for module in model.modules() {
            for work in [module.forward, module.backward_input, module.backward_weight, module.work()] {
                if !(work.is_finite() && work >= 0.0) {
                    return Err(PartitionError::Cost { module: module.name.clone(), work });
                }
            }
            largest = largest.max(module.work());
        }
        let placement = &schedule.placement;
        let rank_of = |chunk: usize| placement.get_rank(chunk);
        let speed_of = |chunk| rank_of(chunk).map_or(FASTEST, |rank| speeds.thousandths_of(rank));
        let thousandths: Vec<u16> = (0..placement.chunks()).map(speed_of).collect();
        let slowest = f64::from(thousandths.iter().copied().min().unwrap_or(FASTEST)) / f64::from(FASTEST);
        // All logarithms are rounded up. The scale is applied in two steps, because 2^bits may be too large for an f64.
        let bits = [largest, model.layers.len() as f64 + 2.0, 1.0 / slowest];
        let bits = bits.iter().fold(61, |left, factor| left - factor.log2().ceil().max(-1022.0) as i32);
        let (half, rest) = (bits / 2, bits - bits / 2);
        let fixed = |module: &ModuleCost| (module.work() * 2f64.powi(half) * 2f64.powi(rest)).round() as u128;
        let held = |chunk| {
            let actions = rank_of(chunk).and_then(|rank| schedule.ranks.get(rank));
            actions.map_or(Vec::new(), |actions| microbatches_held(actions, chunk))
        };
        let layers = &model.layers;
        let rank_memory = |chunk| rank_of(chunk).and_then(|rank| model.ranks.get(rank)).copied().unwrap_or_default();
        Ok(CostTable {
            work: prefix_sums(layers, fixed),
            parameters: prefix_sums(layers, |layer| u128::from(layer.parameter_bytes)),
            activations: prefix_sums(layers, |layer| u128::from(layer.activation_bytes)),
            weight_gradients: prefix_sums(layers, |layer| u128::from(layer.weight_gradient_bytes)),
            pinned_costs: [&model.embedding, &model.head].map(|module| (fixed(module), module)),
            layer_temporaries: layers.iter().map(|layer| layer.temporary_bytes).max().unwrap_or(0),
            ranks: (0..placement.chunks()).map(rank_memory).collect(),
            thousandths,
            layers: layers.len(),
            held: (0..placement.chunks()).map(held).collect(),
        })
    }

    fn chunks(&self) -> usize {
        self.held.len()
    }

    /// Returns the fastest partition whose chunks are all within their limits, or `None` if there is none.
    fn fastest(&self, limits: &[Option<u128>]) -> Option<Partition> {
        let fits =
            |chunk: usize, range: Range<usize>| limits[chunk].is_none_or(|limit| self.bytes(chunk, range) <= limit);
        let time = |chunk, range: Range<usize>| fits(chunk, range.clone()).then(|| self.time(chunk, range));
        let (slowest, _) = min_total_split(self.chunks(), self.layers, time, u128::max)?;
        let square = |chunk, range| time(chunk, range).filter(|time| *time <= slowest).map(|time| time * time);
        let (_, layers) = min_total_split(self.chunks(), self.layers, square, |a, b| a + b)?;
        Some(Partition { layers })
    }

    /// Returns the chunk of `chunks` whose layers hold most bytes, or `None` if no layer holds any.
    fn largest(&self, chunks: impl Iterator<Item = usize>, partition: &Partition) -> Option<usize> {
        let layer_bytes = |chunk: &usize| self.bytes(*chunk, partition.range(*chunk)) - self.bytes(*chunk, 0..0);
        chunks.max_by_key(layer_bytes).filter(|chunk| layer_bytes(chunk) > 0)
    }

    /// Returns the partition whose largest chunk is smallest.
    fn smallest(&self) -> Option<Partition> {
        let bytes = |chunk, range| Some(self.bytes(chunk, range));
        let (_, layers) = min_total_split(self.chunks(), self.layers, bytes, u128::max)?;
        Some(Partition { layers })
    }

    /// Returns the modules that are pinned to a chunk.
    fn pinned_modules(&self, chunk: usize) -> impl Iterator<Item = &(u128, &'a ModuleCost)> {
        let here = [chunk == 0, chunk + 1 == self.chunks()];
        self.pinned_costs.iter().zip(here).filter(|(_, here)| *here).map(|(end, _)| end)
    }

    /// Returns the chunk's work divided by its rank's speed.
    fn time(&self, chunk: usize, range: Range<usize>) -> u128 {
        let pinned: u128 = self.pinned_modules(chunk).map(|(work, _)| work).sum();
        let work = self.work[range.end] - self.work[range.start] + pinned;
        work * u128::from(FASTEST) / u128::from(self.thousandths[chunk])
    }

    /// Returns the peak number of bytes that the chunk's rank would hold without its other chunks. The copies of the
    /// previous rank's parameters are not included.
    fn bytes(&self, chunk: usize, range: Range<usize>) -> u128 {
        let sum = |sums: &[u128]| sums[range.end] - sums[range.start];
        let mut parameters = sum(&self.parameters);
        let mut activations = sum(&self.activations);
        let mut weight_gradients = sum(&self.weight_gradients);
        let mut temporaries = if range.is_empty() { 0 } else { self.layer_temporaries };
        for (_, module) in self.pinned_modules(chunk) {
            parameters += u128::from(module.parameter_bytes);
            activations += u128::from(module.activation_bytes);
            weight_gradients += u128::from(module.weight_gradient_bytes);
            temporaries = temporaries.saturating_add(module.temporary_bytes);
        }
        let moment = |&(whole, split): &(u64, u64)| {
            let total = |bytes: u128, count: u64| bytes.saturating_mul(u128::from(count));
            total(activations, whole).saturating_add(total(weight_gradients, split))
        };
        let RankMemory { parameter_bytes, copied_bytes: _, link_bytes, process_bytes, step_end_bytes } =
            self.ranks[chunk];
        let step = self.held[chunk].iter().map(moment).max().unwrap_or(0).saturating_add(u128::from(temporaries));
        let rank = [parameter_bytes, link_bytes, process_bytes].map(u128::from).into_iter().sum::<u128>();
        parameters.saturating_add(rank).saturating_add(step.max(u128::from(step_end_bytes)))
    }
}

fn prefix_sums(layers: &[ModuleCost], of: impl Fn(&ModuleCost) -> u128) -> Vec<u128> {
    let sums = layers.iter().scan(0, |sum, layer| {
        *sum += of(layer);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Divides a sequence into consecutive intervals, one per chunk, with the minimal total. The dynamic program over
/// (chunk, items used) takes O(chunks x items^2).
///
/// Returns the least total and the lengths that reach it, or `None` if no division is allowed. Among several solutions,
/// the result has the lexicographically smallest lengths.
///
/// `value(chunk, range)` is the value of the chunk alone, or `None` if the range is not allowed. `combine` computes a
/// total from a chunk's value and the total of the chunks after it. `combine` must be monotonic in both arguments.
fn min_total_split(
    chunks: usize,
    items: usize,
    value: impl Fn(usize, Range<usize>) -> Option<u128>,
    combine: fn(u128, u128) -> u128,
) -> Option<(u128, Vec<usize>)> {
    // totals[chunk][start]: the least total of chunks `chunk..` over items `start..`, and the length of `chunk`.
    let mut totals: Vec<Vec<Option<(u128, usize)>>> = vec![vec![None; items + 1]; chunks];
    for chunk in (0..chunks).rev() {
        for start in 0..=items {
            let mut best: Option<(u128, usize)> = None;
            for end in start..=items {
                let rest = match totals.get(chunk + 1) {
                    Some(after) => after[end].map(|(total, _)| Some(total)),
                    None => (end == items).then_some(None),
                };
                let (Some(rest), Some(own)) = (rest, value(chunk, start..end)) else { continue };
                let total = rest.map_or(own, |rest| combine(own, rest));
                if best.is_none_or(|(least, _)| total < least) {
                    best = Some((total, end - start));
                }
            }
            totals[chunk][start] = best;
        }
    }
    let (total, _) = (*totals.first()?.first()?)?;
    let mut start = 0;
    let mut lengths = Vec::with_capacity(chunks);
    for chunk in &totals {
        let (_, length) = chunk[start]?;
        lengths.push(length);
        start += length;
    }
    Some((total, lengths))
}
