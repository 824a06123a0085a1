use super::Schedule;
use crate::action::{Action, Unit};
use crate::placement::Placement;

/// One forward, one backward, one chunk a rank (Narayanan et al. 2021, arXiv:2104.04473; torch's `Schedule1F1B`).
/// Each rank runs ahead just far enough to be busy when the first gradient comes back, so stage `s` of `p` holds
/// the activations of `min(p - s, m)` microbatches; the bubble is that of GPipe.
pub fn one_f_one_b(stages: usize, microbatches: usize) -> Schedule {
    let rank = |chunk| {
        let ahead = microbatches.min(stages - 1 - chunk);
        let unit = |microbatch| Unit { chunk, microbatch };
        let warm_up = (0..ahead).map(|m| Action::Forward(unit(m)));
        let steady = (ahead..microbatches).flat_map(|m| [Action::Forward(unit(m)), Action::Backward(unit(m - ahead))]);
        let drain = (microbatches - ahead..microbatches).map(|m| Action::Backward(unit(m)));
        warm_up.chain(steady).chain(drain).collect()
    };
    Schedule {
        name: "1F1B".to_owned(),
        placement: Placement::linear(stages),
        microbatches,
        ranks: (0..stages).map(rank).collect(),
    }
}
