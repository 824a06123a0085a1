use super::{ChunkRule, Schedule, ScheduleType};
use crate::action::Action;
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// The schedule type `1F1B`.
pub const ONE_F_ONE_B: ScheduleType = ScheduleType {
    name: "1F1B",
    description: "One forward, one backward, after a warm-up.",
    chunks: ChunkRule::One,
    build: |ranks, _, microbatches| one_f_one_b(ranks, microbatches),
};

/// Builds 1F1B: each rank has one chunk and alternates one forward and one backward (Narayanan et al. 2021,
/// arXiv:2104.04473; torch's `Schedule1F1B`). Each rank runs just enough warm-up forwards to be busy when the first
/// gradient arrives. Stage `s` of `p` therefore holds the activations of `min(p - s, m)` of `m` microbatches. The
/// bubble is as large as in GPipe.
pub fn one_f_one_b(stages: usize, microbatches: usize) -> Schedule {
    let rank = |chunk| {
        let warm_up_forwards = microbatches.min(stages - 1 - chunk);
        let item = |microbatch| WorkItem { chunk, microbatch };
        let warm_up = (0..warm_up_forwards).map(|m| Action::Forward(item(m)));
        let steady = (warm_up_forwards..microbatches)
            .flat_map(|m| [Action::Forward(item(m)), Action::FullBackward(item(m - warm_up_forwards))]);
        let cool_down = (microbatches - warm_up_forwards..microbatches).map(|m| Action::FullBackward(item(m)));
        warm_up.chain(steady).chain(cool_down).collect()
    };
    Schedule {
        name: ONE_F_ONE_B.name.to_owned(),
        placement: Placement::linear(stages),
        microbatches,
        ranks: (0..stages).map(rank).collect(),
    }
}
