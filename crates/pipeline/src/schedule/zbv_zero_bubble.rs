use super::{ChunkRule, Schedule, ScheduleType};
use crate::action::Action;
use crate::placement::Placement;
use crate::work_item::WorkItem;

/// The schedule type `ZBVZeroBubble`.
pub(super) const ZBV_ZERO_BUBBLE: ScheduleType = ScheduleType {
    name: "ZBVZeroBubble",
    description: "Two chunks a stage, laid out as a V, with the weight gradient split off.",
    chunks: ChunkRule::Two,
    build: |ranks, _, microbatches| zbv_zero_bubble(ranks, microbatches),
};

/// Builds ZB-V, with two chunks per rank in the shape of a V (Qi et al. 2024, arXiv:2401.10241, section 6; torch's
/// `ScheduleZBVZeroBubble`). A microbatch goes up the ranks and comes back down: its forward ends on rank 0, where it
/// began, and its backward begins there. If the forward (F) and both parts of the backward, I and W, take the same
/// time, the ranks idle only while the pipeline fills and drains. Each of the `p` ranks holds the activations of at
/// most `2p` work items, and a work item covers half of the rank's layers. Every rank therefore holds as much as the
/// first stage of 1F1B.
///
/// Any number of microbatches is possible. With fewer than `2p - 1` microbatches, the schedule is the one for `2p - 1`
/// without the actions of the missing microbatches.
pub fn zbv_zero_bubble(ranks: usize, microbatches: usize) -> Schedule {
    let rank = |rank| {
        let mut actions = zbv_rank(rank, ranks, microbatches.max(2 * ranks - 1));
        actions.retain(|action| action.item().is_some_and(|item| item.microbatch < microbatches));
        actions
    };
    Schedule {
        name: ZBV_ZERO_BUBBLE.name.to_owned(),
        placement: Placement::v_shaped(ranks),
        microbatches,
        ranks: (0..ranks).map(rank).collect(),
    }
}

/// Returns the actions of `rank` for at least `2 * ranks - 1` microbatches.
fn zbv_rank(rank: usize, ranks: usize, microbatches: usize) -> Vec<Action> {
    let (mut up, mut down) = (ChunkActions::new(rank), ChunkActions::new(2 * ranks - 1 - rank));
    let mut actions = Vec::new();
    // warm-up: forwards of the first chunk until the first microbatch comes back, then forwards of both chunks in turn
    actions.extend((0..2 * (ranks - rank) - 1).map(|_| up.forward()));
    for _ in 0..rank {
        actions.extend([down.forward(), up.forward()]);
    }
    for _ in rank..ranks {
        actions.extend([down.forward(), down.input(), down.weight()]);
    }
    // steady phase: forwards and backwards of both chunks in turn
    while down.forwards < microbatches {
        if up.forwards < microbatches {
            actions.push(up.forward());
        }
        actions.extend([up.input(), up.weight(), down.forward(), down.input(), down.weight()]);
    }
    // cool-down: the delayed W fill the time until the last gradients arrive
    for _ in 0..rank {
        actions.extend([up.input(), down.input()]);
    }
    for _ in rank..ranks {
        actions.extend([up.input(), up.weight()]);
    }
    while down.weights < microbatches {
        actions.push(down.weight());
    }
    while up.weights < microbatches {
        actions.push(up.weight());
    }
    actions
}

/// The next microbatch of a chunk, for each kind of action.
struct ChunkActions {
    chunk: usize,
    forwards: usize,
    inputs: usize,
    weights: usize,
}

impl ChunkActions {
    fn new(chunk: usize) -> ChunkActions {
        ChunkActions { chunk, forwards: 0, inputs: 0, weights: 0 }
    }

    fn forward(&mut self) -> Action {
        Action::Forward(next(self.chunk, &mut self.forwards))
    }

    fn input(&mut self) -> Action {
        Action::BackwardInput(next(self.chunk, &mut self.inputs))
    }

    fn weight(&mut self) -> Action {
        Action::BackwardWeight(next(self.chunk, &mut self.weights))
    }
}

fn next(chunk: usize, count: &mut usize) -> WorkItem {
    *count += 1;
    WorkItem { chunk, microbatch: *count - 1 }
}
