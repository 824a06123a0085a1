use super::rounds::Rounds;
use super::{ChunkRule, Schedule, ScheduleType};
use crate::action::Action;
use crate::placement::Placement;

/// The schedule type `Interleaved1F1B`.
pub const INTERLEAVED_ONE_F_ONE_B: ScheduleType = ScheduleType {
    name: "Interleaved1F1B",
    description: "1F1B over several chunks a stage.",
    chunks: ChunkRule::Any,
    build: interleaved_one_f_one_b,
};

/// Builds 1F1B with `v` chunks per rank (Narayanan et al. 2021, arXiv:2104.04473, section 2.2; torch's
/// `ScheduleInterleaved1F1B`). The bubble is the bubble of 1F1B divided by `v`. Before its first pair of a forward and
/// a backward, rank `r` of `p` runs `(v - 1) * p + 2 * (p - 1 - r)` forwards. The rank therefore holds the activations
/// of one more work item than that number. Each work item covers a `v`-th of the rank's layers.
///
/// Any number of microbatches is possible. The bubble has the size above only with at least `p` microbatches.
pub fn interleaved_one_f_one_b(ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Schedule {
    let rank = |rank| {
        let Rounds { forward, backward, warm_up } = Rounds::new(rank, ranks, chunks_per_rank, microbatches);
        let warm_up = (warm_up + 2 * (ranks - 1 - rank)).min(forward.len());
        let (ahead, steady) = forward.split_at(warm_up);
        let (paired, rest) = backward.split_at(steady.len());
        let pairs = steady.iter().zip(paired).flat_map(|(f, b)| [Action::Forward(*f), Action::FullBackward(*b)]);
        let ahead = ahead.iter().map(|item| Action::Forward(*item));
        ahead.chain(pairs).chain(rest.iter().map(|item| Action::FullBackward(*item))).collect()
    };
    Schedule {
        name: INTERLEAVED_ONE_F_ONE_B.name.to_owned(),
        placement: Placement::looped(ranks, chunks_per_rank),
        microbatches,
        ranks: (0..ranks).map(rank).collect(),
    }
}
