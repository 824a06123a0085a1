use super::Schedule;
use crate::action::Action;
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// All forwards, then all backwards, one chunk per rank (Huang et al. 2019, arXiv:1811.06965; torch's `ScheduleGPipe`).
/// Every rank holds the activations of all microbatches.
pub fn gpipe(stages: usize, microbatches: usize) -> Schedule {
    let rank = |chunk| {
        let items = (0..microbatches).map(move |microbatch| WorkItem { chunk, microbatch });
        items.clone().map(Action::Forward).chain(items.map(Action::FullBackward)).collect()
    };
    Schedule {
        name: "GPipe".to_owned(),
        placement: Placement::linear(stages),
        microbatches,
        ranks: (0..stages).map(rank).collect(),
    }
}
