//! The loss of a step, computed from the sums of its gradient blocks (fixed groups of microbatches). The bits of the
//! loss do not depend on which rank computed which block. This module is pure.

use serde::{Deserialize, Serialize};

use crate::names::without_noun;

/// The cross-entropies of the gradient blocks that one rank computed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockLosses {
    /// The number of blocks of the step, including the blocks of other ranks; a power of two.
    pub blocks: u32,
    /// The number of targets that contribute to the loss, over all blocks of the step.
    pub target_count: u64,
    /// For each block that this rank computed, the index of the block and the sum of its cross-entropies, in nats.
    pub sums: Vec<(u32, f64)>,
}

/// Returns the mean loss over all targets, in nats, from the votes by group rank. The sums of the blocks are added in a
/// binary tree in the order of the block indices, so that the result is bit-identical for every distribution of the
/// blocks over ranks.
///
/// # Errors
/// Returns an error if some block was not voted exactly once, or if the ranks disagree on the number of blocks or of
/// targets.
pub(crate) fn mean_loss<'a>(
    votes: impl Iterator<Item = (usize, &'a BlockLosses)>,
    step: u64,
    name: &dyn Fn(usize) -> String,
) -> Result<f32, String> {
    let votes: Vec<(usize, &BlockLosses)> = votes.collect();
    let Some(&(first, BlockLosses { blocks, target_count, .. })) = votes.first() else {
        return Err(format!("no stage reported the loss of step {step}: the stage with the head must report it"));
    };
    let agrees = |vote: &BlockLosses| (&vote.blocks, &vote.target_count) == (blocks, target_count);
    if let Some(&(group_rank, other)) = votes.iter().find(|(_, vote)| !agrees(vote)) {
        return Err(format!(
            "{} reports the loss of step {step} with {blocks} blocks and {target_count} targets, but {} reports {} \
             blocks and {} targets",
            name(first),
            name(group_rank),
            other.blocks,
            other.target_count
        ));
    }
    let mut sums: Vec<(u32, usize, f64)> = Vec::new();
    for (group_rank, vote) in &votes {
        sums.extend(vote.sums.iter().map(|&(block, sum)| (block, *group_rank, sum)));
    }
    sums.sort_by_key(|&(block, group_rank, _)| (block, group_rank));
    if let Some(pair) = sums.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (block, one, other) = (pair[0].0, name(pair[0].1), name(pair[1].1));
        let (one, other) = (without_noun(&one), without_noun(&other));
        return Err(format!("the loss of block {block} of step {step} was voted twice, by stages {one} and {other}"));
    }
    if !blocks.is_power_of_two() || !sums.iter().map(|&(block, ..)| block).eq(0..*blocks) {
        let voted: Vec<u32> = sums.iter().map(|&(block, ..)| block).collect();
        return Err(format!(
            "the votes on step {step} have the losses of blocks {voted:?}, but the step has {blocks} blocks"
        ));
    }
    let mut level: Vec<f64> = sums.into_iter().map(|(.., sum)| sum).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    Ok((level.iter().sum::<f64>() / *target_count as f64) as f32)
}
