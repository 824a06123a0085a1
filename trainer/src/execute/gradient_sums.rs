//! The sums of a stage's weight gradients over the blocks of a step.

use std::collections::{BTreeMap, HashMap};

use stagecoach_pipeline::{GradientBlocks, Subtree, WorkItem};
use tch::Tensor;

/// Weights of a stage whose gradients are accumulated by one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Weights {
    /// A chunk's, but for the head: by B or W.
    Chunk(usize),
    /// The head's, by F.
    Head,
}

/// Adds the blocks of each action's weights as the binary tree of [`GradientBlocks`]. Their accumulators hold the
/// block that is being added to, and after the last block the whole sum.
#[derive(Debug, Default)]
pub(super) struct GradientSums {
    /// The accumulators by what they are of.
    accumulators: BTreeMap<Weights, Vec<Tensor>>,
    /// Sums that wait for their sibling: copies of the accumulators.
    partial: HashMap<(Weights, Subtree), Vec<Tensor>>,
}

impl GradientSums {
    pub(super) fn new(accumulators: BTreeMap<Weights, Vec<Tensor>>) -> GradientSums {
        GradientSums { accumulators, partial: HashMap::new() }
    }

    /// The gradients of `weights` for `item` are in the accumulators: if a block ends with it, adds the blocks before it as far as the tree
    /// allows, and makes room for the next one.
    pub(super) fn add(&mut self, weights: Weights, item: WorkItem, blocks: GradientBlocks) {
        let Some(mut sum) = blocks.ending_with(item) else { return };
        let Some(accumulators) = self.accumulators.get(&weights) else { return };
        while let Some(other) = self.partial.remove(&(weights, sum.sibling())) {
            for (accumulator, other) in accumulators.iter().zip(&other) {
                let _ = accumulator.shallow_clone().g_add_(other);
            }
            sum = sum.parent();
        }
        if !blocks.is_root(sum) {
            self.partial.insert((weights, sum), accumulators.iter().map(Tensor::copy).collect());
            for accumulator in accumulators {
                let _ = accumulator.shallow_clone().zero_();
            }
        }
    }

    /// Forgets what an unfinished step has left.
    pub(super) fn clear(&mut self) {
        self.partial.clear();
    }
}
