//! Defines the order in which the gradients of a step's microbatches are added. Within a block of consecutive
//! microbatches, the gradients are added one after the other. The sums of the blocks are added in a binary tree over
//! the indices of the blocks. The order, and so the bits of the sum, do not depend on the replica that computes each
//! block.

use std::ops::Range;

use crate::work_item::WorkItem;

/// The blocks of a step. Their number is a power of two, and each has the same number of consecutive microbatches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GradientBlocks {
    count: usize,
    block_size: usize,
}

impl GradientBlocks {
    /// Divides `microbatches` microbatches into `count` blocks. Returns `None` unless `count` is a power of two that
    /// divides `microbatches`.
    pub fn new(count: usize, microbatches: usize) -> Option<GradientBlocks> {
        let fits = count.is_power_of_two() && microbatches > 0 && microbatches.is_multiple_of(count);
        fits.then(|| GradientBlocks { count, block_size: microbatches / count })
    }

    /// Returns a single block with all microbatches. Their gradients are added in microbatch order.
    pub fn one(microbatches: usize) -> GradientBlocks {
        GradientBlocks { count: 1, block_size: microbatches }
    }

    /// Returns the number of blocks.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the consecutive blocks that the replica with index `replica` computes if there are `replicas` replicas.
    /// If the blocks can't be divided evenly, the first replicas have one more block than the others.
    ///
    /// # Panics
    /// Panics if `replicas` is 0.
    pub fn of_replica(self, replica: usize, replicas: usize) -> ReplicaBlocks {
        let (each, more) = (self.count / replicas, self.count % replicas);
        let first = |replica: usize| replica * each + replica.min(more);
        ReplicaBlocks { all: self, range: first(replica)..first(replica + 1) }
    }

    /// Returns all blocks, for a step with one replica.
    pub fn whole(self) -> ReplicaBlocks {
        self.of_replica(0, 1)
    }
}

/// The blocks that one replica computes. As in the replica's program, the index of its first microbatch is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaBlocks {
    all: GradientBlocks,
    range: Range<usize>,
}

impl ReplicaBlocks {
    /// Returns the blocks of the whole step.
    pub fn all(&self) -> GradientBlocks {
        self.all
    }

    /// Returns the index of the replica's first block in the step.
    pub fn first(&self) -> usize {
        self.range.start
    }

    /// Returns the replica's microbatches as indices in the step.
    pub fn microbatches(&self) -> Range<usize> {
        self.range.start * self.all.block_size..self.range.end * self.all.block_size
    }

    /// Whether a block begins with `microbatch`.
    pub fn is_first_of_block(&self, microbatch: usize) -> bool {
        microbatch.is_multiple_of(self.all.block_size)
    }

    /// Returns the block that ends with the microbatch of `item`, or `None` if the microbatch does not end a block.
    pub fn ending_with(&self, item: WorkItem) -> Option<Subtree> {
        let next = item.microbatch + 1;
        let is_last = next.is_multiple_of(self.all.block_size);
        is_last.then(|| Subtree { first: self.range.start + next / self.all.block_size - 1, blocks: 1 })
    }

    /// Whether `subtree` ends with the replica's last block.
    pub fn is_end(&self, subtree: Subtree) -> bool {
        subtree.first + subtree.blocks == self.range.end
    }

    /// Returns, in order, the largest subtrees whose blocks all belong to the replica. The replica holds the sums of
    /// these subtrees after its last microbatch.
    pub fn subtrees(&self) -> Vec<Subtree> {
        self.sums().0
    }

    /// Returns the maximal number of sums that wait for their sibling while the blocks are added in order. The sum of
    /// the block in progress does not count.
    pub fn partial_sums(&self) -> usize {
        self.sums().1
    }

    fn sums(&self) -> (Vec<Subtree>, usize) {
        let (mut waiting, mut most) = (Vec::new(), 0);
        for first in self.range.clone() {
            most = most.max(waiting.len());
            Subtree { first, blocks: 1 }.push((), &mut waiting, |(), ()| ());
        }
        (waiting.into_iter().map(|(subtree, ())| subtree).collect(), most)
    }
}

/// A node of the tree: the sum of consecutive blocks, whose number is a power of two.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subtree {
    first: usize,
    blocks: usize,
}

impl Subtree {
    /// Returns the node to which this node is added.
    #[must_use]
    pub fn sibling(self) -> Subtree {
        Subtree { first: self.first ^ self.blocks, blocks: self.blocks }
    }

    /// Returns the node that is the sum of this node and its sibling.
    #[must_use]
    pub fn parent(self) -> Subtree {
        Subtree { first: self.first & !self.blocks, blocks: 2 * self.blocks }
    }

    /// Pushes the sum of this node to `waiting`, the ordered list of earlier nodes that wait for their sibling. If the
    /// last node of the list is this node's sibling, `add(left, right)` combines the two sums into the sum of their
    /// parent. The parent then replaces this node, and the function looks for the parent's sibling.
    pub fn push<T>(self, sum: T, waiting: &mut Vec<(Subtree, T)>, add: impl Fn(T, T) -> T) {
        let (mut node, mut sum) = (self, sum);
        while let Some((_, left)) = waiting.pop_if(|(other, _)| *other == node.sibling()) {
            (node, sum) = (node.parent(), add(left, sum));
        }
        waiting.push((node, sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns the tree of `values` as text.
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

    /// Adds the blocks as a stage does. Each microbatch is added to the open sum, the sum of the block in progress. At
    /// a block's end, the open sum is combined with the waiting sum of its sibling, and so on up the tree. Returns the
    /// remaining sums and the maximal number of waiting sums.
    fn add_up(blocks: &ReplicaBlocks) -> (BTreeMap<Subtree, String>, usize) {
        let (mut partial, mut open, mut most) = (BTreeMap::new(), String::new(), 0);
        for (at, microbatch) in blocks.microbatches().enumerate() {
            open += &format!("{microbatch},");
            let Some(mut node) = blocks.ending_with(WorkItem { chunk: 0, microbatch: at }) else { continue };
            most = most.max(partial.len());
            while let Some(left) = partial.remove(&node.sibling()) {
                assert!(node.sibling() < node && node.sibling().sibling() == node);
                open = format!("({left}+{open})");
                node = node.parent();
            }
            assert_eq!(blocks.is_end(node), at + 1 == blocks.microbatches().len());
            partial.insert(node, std::mem::take(&mut open));
        }
        (partial, most)
    }

    proptest! {
        /// The number of replicas and the order of their sums are arbitrary.
        #[test]
        fn the_sums_of_all_replicas_make_the_tree(
            log in 0usize..6,
            block_size in 1usize..4,
            replicas in 1usize..9,
            turn in 0usize..64,
        ) {
            let (count, microbatches) = (1 << log, block_size << log);
            let replicas = replicas.min(count);
            let blocks = GradientBlocks::new(count, microbatches).unwrap();
            let (mut sums, mut next) = (Vec::new(), 0);
            for replica in 0..replicas {
                let own = blocks.of_replica(replica, replicas);
                prop_assert_eq!((own.microbatches().start, own.first() * block_size), (next, next));
                next = own.microbatches().end;
                let size = own.microbatches().len() / block_size;
                prop_assert!(size == count / replicas || size == count.div_ceil(replicas));
                let (left, most) = add_up(&own);
                prop_assert_eq!(left.keys().copied().collect::<Vec<_>>(), own.subtrees());
                prop_assert_eq!(most, own.partial_sums());
                sums.extend(left);
            }
            prop_assert_eq!(next, microbatches);
            prop_assert_eq!(blocks.whole().partial_sums(), log);
            let by = turn % sums.len();
            sums.rotate_left(by);
            let mut partial = BTreeMap::new();
            for (mut node, mut sum) in sums {
                while let Some(other) = partial.remove(&node.sibling()) {
                    sum = if node.sibling() < node { format!("({other}+{sum})") } else { format!("({sum}+{other})") };
                    node = node.parent();
                }
                partial.insert(node, sum);
            }
            let block_text = |block| (0..block_size).map(|m| format!("{},", block * block_size + m)).collect::<String>();
            let (root, total) = partial.pop_first().unwrap();
            prop_assert_eq!((root, partial.len()), (Subtree { first: 0, blocks: count }, 0));
            prop_assert_eq!(total, tree(&(0..count).map(block_text).collect::<Vec<_>>()));
        }
    }
}
