use super::rounds::Rounds;
use super::{ChunkRule, Schedule, ScheduleType};
use crate::action::Action;
use crate::placement::Placement;

/// The schedule type `InterleavedZeroBubble`.
pub(super) const INTERLEAVED_ZERO_BUBBLE: ScheduleType = ScheduleType {
    name: "InterleavedZeroBubble",
    description: "Interleaved with the weight gradient split off; ZB-H1 with one chunk a stage.",
    chunks: ChunkRule::Any,
    build: interleaved_zero_bubble,
};

/// Builds interleaved 1F1B with backwards that are split into the gradient of the input (I) and the gradients of the
/// weights (W), so that W fills the wait for gradients. With one chunk per rank, the schedule is ZB-H1 (Qi et al. 2024,
/// arXiv:2401.10241; torch's `ScheduleInterleavedZeroBubble`). In its warm-up, rank `r` of `p` runs `p - 1 - r` fewer
/// forwards than in interleaved 1F1B. The rank delays each W until the I of `r` later work items have run. With one
/// chunk per rank, every rank therefore holds the activations, or the inputs of W, of `min(p, m)` of `m` microbatches.
///
/// Any number of microbatches is possible.
pub fn interleaved_zero_bubble(ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Schedule {
    let rank = |rank| {
        let Rounds { forward, backward, warm_up } = Rounds::new(rank, ranks, chunks_per_rank, microbatches);
        let warm_up = (warm_up + ranks - 1 - rank).min(forward.len());
        let (ahead, steady) = forward.split_at(warm_up);
        let mut actions: Vec<Action> = ahead.iter().map(|item| Action::Forward(*item)).collect();
        for (index, item) in backward.iter().enumerate() {
            actions.extend(steady.get(index).map(|item| Action::Forward(*item)));
            actions.push(Action::BackwardInput(*item));
            actions.extend(index.checked_sub(rank).map(|late| Action::BackwardWeight(backward[late])));
        }
        let late = backward.len().saturating_sub(rank);
        actions.extend(backward[late..].iter().map(|item| Action::BackwardWeight(*item)));
        actions
    };
    Schedule {
        name: INTERLEAVED_ZERO_BUBBLE.name.to_owned(),
        placement: Placement::looped(ranks, chunks_per_rank),
        microbatches,
        ranks: (0..ranks).map(rank).collect(),
    }
}
