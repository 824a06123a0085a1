//! In which order the gradients of a step's microbatches are added: within a block of consecutive microbatches one after the
//! other, then the blocks as a binary tree by index. The order does not depend on who computes which block, and so neither
//! do the bits of the sum.

use crate::action::WorkItem;

/// The blocks of a step: a power of two, of equally many consecutive microbatches each.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GradientBlocks {
    count: usize,
    block_size: usize,
}

impl GradientBlocks {
    /// `count` blocks of `microbatches` microbatches; `None` if `count` is no power of two that divides them.
    pub fn new(count: usize, microbatches: usize) -> Option<GradientBlocks> {
        let fits = count.is_power_of_two() && microbatches > 0 && microbatches.is_multiple_of(count);
        fits.then(|| GradientBlocks { count, block_size: microbatches / count })
    }

    /// One block of all microbatches: their gradients are added in their order.
    pub fn one(microbatches: usize) -> GradientBlocks {
        GradientBlocks { count: 1, block_size: microbatches }
    }

    /// The number of blocks.
    pub fn count(self) -> usize {
        self.count
    }

    /// Whether a block begins with `microbatch`.
    pub fn is_first_of_block(self, microbatch: usize) -> bool {
        microbatch.is_multiple_of(self.block_size)
    }

    /// The block that `item`'s microbatch is the last of.
    pub fn ending_with(self, item: WorkItem) -> Option<Subtree> {
        let next = item.microbatch + 1;
        next.is_multiple_of(self.block_size).then(|| Subtree { first: next / self.block_size - 1, blocks: 1 })
    }

    /// Whether `subtree` is the sum of all blocks.
    pub fn is_root(self, subtree: Subtree) -> bool {
        subtree.blocks == self.count
    }

    /// The most partial sums that wait for their sibling while all blocks are added in their order, besides the one that is
    /// being added to.
    pub fn partial_sums(self) -> usize {
        self.count.ilog2() as usize
    }
}

/// A node of the tree: the sum of a power of two of consecutive blocks.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subtree {
    first: usize,
    blocks: usize,
}

impl Subtree {
    /// The node that it is added to.
    #[must_use]
    pub fn sibling(self) -> Subtree {
        Subtree { first: self.first ^ self.blocks, blocks: self.blocks }
    }

    /// The sum of both.
    #[must_use]
    pub fn parent(self) -> Subtree {
        Subtree { first: self.first & !self.blocks, blocks: 2 * self.blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What the tree of `values` is, as text.
    fn tree(values: &[String]) -> String {
        match values {
            [one] => one.clone(),
            _ => {
                let (left, right) = values.split_at(values.len() / 2);
                format!("({}+{})", tree(left), tree(right))
            }
        }
    }

    #[test]
    fn blocks_are_powers_of_two_that_divide_the_microbatches() {
        assert_eq!(GradientBlocks::new(1, 12), Some(GradientBlocks::one(12)));
        assert!(GradientBlocks::new(4, 12).is_some());
        for (count, microbatches) in [(0, 12), (3, 12), (8, 12), (6, 12), (1, 0), (16, 8)] {
            assert_eq!(GradientBlocks::new(count, microbatches), None, "{count} of {microbatches}");
        }
    }

    proptest! {
        /// As a stage adds them up: each microbatch to the open sum, which takes its sibling in at a block's end.
        #[test]
        fn microbatches_in_order_make_the_tree(log in 0usize..6, block_size in 1usize..4) {
            let (count, microbatches) = (1 << log, block_size << log);
            let blocks = GradientBlocks::new(count, microbatches).unwrap();
            let (mut partial, mut open, mut most, mut total) = (BTreeMap::new(), String::new(), 0, None);
            for microbatch in 0..microbatches {
                open += &format!("{microbatch},");
                prop_assert_eq!(blocks.is_first_of_block(microbatch), microbatch % block_size == 0);
                let Some(mut node) = blocks.ending_with(WorkItem { chunk: 0, microbatch }) else { continue };
                while let Some(left) = partial.remove(&node.sibling()) {
                    prop_assert!(node.sibling() < node && node.sibling().sibling() == node);
                    open = format!("({left}+{open})");
                    node = node.parent();
                }
                let sum = std::mem::take(&mut open);
                match blocks.is_root(node) {
                    true => total = Some(sum),
                    false => drop(partial.insert(node, sum)),
                }
                most = most.max(partial.len());
            }
            let of_block = |block| (0..block_size).map(|m| format!("{},", block * block_size + m)).collect::<String>();
            prop_assert_eq!(total, Some(tree(&(0..count).map(of_block).collect::<Vec<_>>())));
            prop_assert!(partial.is_empty());
            prop_assert_eq!(most, blocks.partial_sums());
        }
    }
}
