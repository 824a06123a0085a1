//! Defines the order in which a rank of an interleaved pipeline visits its chunks. A round is a group of consecutive
//! microbatches. In a round, the rank runs the group through its chunks, one chunk after another. While the rank runs
//! the group through one chunk, the first microbatch of the group passes the other ranks. The rank can then run this
//! microbatch through its next chunk without a wait.

use std::ops::Range;

use crate::work_item::WorkItem;

/// A rank's work items, in the order of its forwards and in the order of its backwards.
pub(super) struct Rounds {
    /// The work items of the forwards, round by round: the rank's chunks ascending, with the round's microbatches in
    /// each.
    pub(super) forward: Vec<WorkItem>,
    /// The work items of the backwards, round by round: the rank's chunks descending, with the round's microbatches in
    /// each.
    pub(super) backward: Vec<WorkItem>,
    /// The number of warm-up forwards that the pipeline's last rank runs before its first backward. These are the
    /// forwards of the first round in all chunks but the last.
    pub(super) warm_up: usize,
}

impl Rounds {
    /// Creates the rounds of `rank` in `ranks`. The chunks of the rank are `rank`, `rank + ranks` and so on.
    ///
    /// If there are enough microbatches, each round has at least as many microbatches as there are ranks. Rounds differ
    /// by at most one microbatch, and the larger rounds come first. Torch requires equal rounds. For numbers of
    /// microbatches that torch accepts, the rounds are the same as torch's.
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
