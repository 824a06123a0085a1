use super::{ChunkRule, Schedule, ScheduleType};
use crate::action::Action;
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// The schedule type `GPipe`.
pub(super) const GPIPE: ScheduleType = ScheduleType {
    name: "GPipe",
    description: "All forward passes, then all backward passes.",
    chunks: ChunkRule::One,
    build: |ranks, _, microbatches| gpipe(ranks, microbatches),
};

/// Builds GPipe: each rank has one chunk and runs all forwards, then all backwards (Huang et al. 2019,
/// arXiv:1811.06965; torch's `ScheduleGPipe`). Every rank holds the activations of all microbatches.
pub fn gpipe(stages: usize, microbatches: usize) -> Schedule {
    let rank = |chunk| {
        let items = (0..microbatches).map(move |microbatch| WorkItem { chunk, microbatch });
        items.clone().map(Action::Forward).chain(items.map(Action::FullBackward)).collect()
    };
    Schedule {
        name: GPIPE.name.to_owned(),
        placement: Placement::linear(stages),
        microbatches,
        ranks: (0..stages).map(rank).collect(),
    }
}
