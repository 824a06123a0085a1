//! The weight gradients of a step. A schedule with split backward passes (zero bubble) defers the weight gradients to
//! the W actions (backward for the weights). The stage adds up all gradients over the blocks of the step. A block
//! consists of consecutive microbatches, whose gradients are added in their order. The sums of blocks are added
//! pairwise as a binary tree, whose nodes are `Subtree`s. The result therefore does not depend on the number of
//! replicas.

use std::collections::{BTreeMap, HashMap};

use stagecoach_model::WeightGradient;
use stagecoach_pipeline::{ReplicaBlocks, Subtree, WorkItem};
use tch::Tensor;

/// The weight gradients of an unfinished step.
#[derive(Debug)]
pub(super) struct Gradients {
    /// Weight gradients that are not yet accumulated.
    pub(super) store: WeightGradStore,
    /// The sums over the blocks of the step.
    pub(super) sums: GradientSums,
}

impl Gradients {
    /// Creates the sums of `accumulators`, which belong to the stage's parameters.
    pub(super) fn new(accumulators: BTreeMap<AccumulatorGroup, Vec<(usize, Tensor)>>) -> Gradients {
        Gradients { store: WeightGradStore::default(), sums: GradientSums { accumulators, partial: HashMap::new() } }
    }

    /// Discards the gradients of an unfinished step.
    pub(super) fn clear(&mut self) {
        self.store = WeightGradStore::default();
        self.sums.partial.clear();
    }
}

/// The deferred weight gradients, by chunk and microbatch, until their W action. Gradients of different microbatches
/// are never merged, because a merge would change the order of summation.
#[derive(Debug, Default)]
pub(super) struct WeightGradStore(BTreeMap<WorkItem, Vec<WeightGradient>>);

impl WeightGradStore {
    pub(super) fn push(&mut self, item: WorkItem, gradient: WeightGradient) {
        self.0.entry(item).or_default().push(gradient);
    }

    /// Adds all gradients of `item` to their accumulators, in the order in which the backward pass produced them.
    pub(super) fn accumulate(&mut self, item: WorkItem) {
        self.0.remove(&item).unwrap_or_default().into_iter().for_each(WeightGradient::accumulate);
    }
}

/// The accumulators to which one action adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum AccumulatorGroup {
    /// The accumulators of a chunk except the head's. The full backward pass (B) or the action W adds to them.
    Chunk(usize),
    /// The accumulator of the head. The forward pass (F) adds to it, because the head computes its gradient with the
    /// loss.
    Head,
}

/// The sums of blocks, added pairwise along the tree of [`ReplicaBlocks`]. The accumulators hold the sum of the current
/// block and, after the replica's last block, the sum of the last subtree.
#[derive(Debug)]
pub(super) struct GradientSums {
    /// The accumulators of each group, with the index of their parameter.
    accumulators: BTreeMap<AccumulatorGroup, Vec<(usize, Tensor)>>,
    /// The sums that wait for their sibling in the tree, copied from the accumulators.
    partial: HashMap<(AccumulatorGroup, Subtree), Vec<Tensor>>,
}

/// An accumulator, and its sums in this replica after the replica's last microbatch.
pub(super) struct ReplicaSums<'a> {
    /// The index among all accumulators of the stage, which is the same in all replicas.
    pub(super) index: usize,
    /// The index of the parameter.
    pub(super) parameter: usize,
    /// The accumulator.
    pub(super) accumulator: &'a Tensor,
    /// The sums, in the order of [`ReplicaBlocks::subtrees`]; the last one is the accumulator.
    pub(super) sums: Vec<&'a Tensor>,
}

impl GradientSums {
    /// Returns the accumulators of `group`, with the index of their parameter; empty if the stage does not hold them.
    pub(super) fn accumulators(&self, group: AccumulatorGroup) -> &[(usize, Tensor)] {
        self.accumulators.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Finishes the block that ends with `item`; does nothing if no block ends with it. While the sum of the sibling
    /// subtree is stored, adds this sum to the accumulators of `group`, and continues with the parent. If more blocks
    /// follow, stores the result and zeroes the accumulators.
    pub(super) fn finish_block_after(&mut self, group: AccumulatorGroup, item: WorkItem, blocks: &ReplicaBlocks) {
        let Some(mut sum) = blocks.ending_with(item) else { return };
        let Some(accumulators) = self.accumulators.get(&group) else { return };
        while let Some(other) = self.partial.remove(&(group, sum.sibling())) {
            for ((_, accumulator), other) in accumulators.iter().zip(&other) {
                let _ = accumulator.shallow_clone().g_add_(other);
            }
            sum = sum.parent();
        }
        if !blocks.is_end(sum) {
            self.partial.insert((group, sum), accumulators.iter().map(|(_, tensor)| tensor.copy()).collect());
            for (_, accumulator) in accumulators {
                let _ = accumulator.shallow_clone().zero_();
            }
        }
    }

    /// Returns the accumulators of a chunk in a fixed order, each with this replica's sums.
    pub(super) fn of_chunk(&self, chunk: usize, has_head: bool, subtrees: &[Subtree]) -> Vec<ReplicaSums<'_>> {
        let earlier = &subtrees[..subtrees.len().saturating_sub(1)];
        let (mut all, mut first) = (Vec::new(), 0);
        for (group, accumulators) in &self.accumulators {
            let is_of_chunk = match group {
                AccumulatorGroup::Chunk(other) => *other == chunk,
                AccumulatorGroup::Head => has_head,
            };
            let partial: Vec<_> = earlier.iter().filter_map(|sum| self.partial.get(&(*group, *sum))).collect();
            for (at, (parameter, accumulator)) in accumulators.iter().enumerate().filter(|_| is_of_chunk) {
                let sums = partial.iter().map(|tensors| &tensors[at]).chain([accumulator]).collect();
                all.push(ReplicaSums { index: first + at, parameter: *parameter, accumulator, sums });
            }
            first += accumulators.len();
        }
        all
    }
}
