//! The order in which a rank of an interleaved pipeline visits its chunks: in rounds of microbatches, so that a
//! microbatch comes back to the rank just when it has passed all the others.

use std::ops::Range;

use crate::action::WorkItem;

/// A rank's work items, in the order of its forwards and in that of its backwards.
pub(super) struct Rounds {
    /// Round by round, its chunks ascending; in each, the round's microbatches.
    pub(super) forward: Vec<WorkItem>,
    /// The same with chunks descending.
    pub(super) backward: Vec<WorkItem>,
    /// Forwards that the pipeline's last rank runs before its first backward: all that the first round has in all
    /// chunks but the last.
    pub(super) warm_up: usize,
}

impl Rounds {
    /// The rounds of `rank` in `ranks`, whose chunks are `rank`, `rank + ranks` and so on.
    ///
    /// Rounds have at least as many microbatches as there are ranks where there are enough of them, and differ by one
    /// microbatch at most, the larger first. Where torch accepts the number of microbatches, they are torch's: there,
    /// all have to be equal.
    pub(super) fn new(rank: usize, ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Rounds {
        let rounds = (microbatches / ranks).max(1);
        let (size, larger) = (microbatches / rounds, microbatches % rounds);
        let round = |index: usize| {
            let start = index * size + index.min(larger);
            start..start + size + usize::from(index < larger)
        };
        let items = |chunk: usize, round: Range<usize>| {
            round.map(move |microbatch| WorkItem { chunk: rank + chunk * ranks, microbatch })
        };
        let forward = |index| (0..chunks_per_rank).flat_map(move |chunk| items(chunk, round(index)));
        let backward = |index| (0..chunks_per_rank).rev().flat_map(move |chunk| items(chunk, round(index)));
        Rounds {
            forward: (0..rounds).flat_map(forward).collect(),
            backward: (0..rounds).flat_map(backward).collect(),
            warm_up: (chunks_per_rank - 1) * round(0).len(),
        }
    }
}
