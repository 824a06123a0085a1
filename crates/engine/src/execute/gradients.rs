//! The weight gradients of a step. Split backward passes (zero bubble) keep them until their W action. All are added up
//! over the blocks of the step. A block is a run of consecutive microbatches, which are added in their order. The sums of
//! blocks are added pairwise as a binary tree, whose nodes are `Subtree`s. The result therefore does not depend on the
//! number of replicas.

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

/// Weight gradients by chunk and microbatch, until their W action. Gradients of different microbatches are never merged,
/// because a merge would change the order of summation.
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
    /// The accumulators of a chunk except the head's, to which B or W adds.
    Chunk(usize),
    /// The accumulator of the head, to which F adds.
    Head,
}

/// The sums of blocks, added pairwise along the tree of [`ReplicaBlocks`]. The accumulators hold the current block and,
/// after the replica's last block, the last subtree.
#[derive(Debug)]
pub(super) struct GradientSums {
    /// The accumulators of each group, with the index of their parameter.
    accumulators: BTreeMap<AccumulatorGroup, Vec<(usize, Tensor)>>,
    /// Copies of the accumulators: sums that wait for their sibling.
    partial: HashMap<(AccumulatorGroup, Subtree), Vec<Tensor>>,
}

/// An accumulator, and the replica's sums for it after the last microbatch of the replica.
pub(super) struct ReplicaSums<'a> {
    /// Index among all accumulators of the stage; equal in all replicas.
    pub(super) index: usize,
    /// Index of the parameter.
    pub(super) parameter: usize,
    /// The accumulator.
    pub(super) accumulator: &'a Tensor,
    /// The sums, in the order of [`ReplicaBlocks::subtrees`]; the last one is the accumulator.
    pub(super) sums: Vec<&'a Tensor>,
}

impl GradientSums {
    /// The accumulators of `group`, with the index of their parameter; empty if the stage does not hold them.
    pub(super) fn accumulators(&self, group: AccumulatorGroup) -> &[(usize, Tensor)] {
        self.accumulators.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Finishes the block that ends with `item`, if there is one. Adds the preceding blocks to the accumulators of
    /// `group` as far as the tree allows, and zeroes the accumulators for the next block.
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

    /// The accumulators of a chunk in a fixed order, with this replica's sums for each.
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
