//! Lowers a schedule to programs: adds the communication and the actions that end a step.

use rustc_hash::FxHashSet;

use crate::action::Action;
use crate::placement::Placement;
use crate::program::{ActionLocation, Programs};
use crate::schedule::Schedule;
use crate::verify::{BlockedActions, ProgramKind, Violation, check_ranks};
use crate::work_item::WorkItem;

/// The error of a schedule that can't be executed. Positions are indices in the schedule's lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schedule {schedule}: {violation}")]
pub struct LowerError {
    /// The schedule's name.
    pub schedule: String,
    /// The rule that the schedule violates.
    #[source]
    pub violation: Violation,
}

/// Lowers a schedule to programs: adds the sends and receives of each rank, and `EXCHANGE`, `UPDATE` and `SNAPSHOT` at
/// the end. If the embedding is `tied`, the ranks of the first and the last chunk run `REDUCE_TIED` before `EXCHANGE`,
/// even if one rank has both chunks.
///
/// # Errors
/// Returns an error if actions are missing, duplicated or in an impossible order, or if the ranks would deadlock.
pub fn lower(schedule: &Schedule, tied: bool) -> Result<Programs, LowerError> {
    let Schedule { name, placement, microbatches, ranks } = schedule;
    let refuse = |violation| LowerError { schedule: name.clone(), violation };
    check_ranks(placement, *microbatches, ranks, ProgramKind::Schedule).map_err(refuse)?;
    let (mut ranks, blocked) = add_send_recv(placement, ranks);
    if !blocked.is_empty() {
        return Err(refuse(Violation::Deadlock { blocked: BlockedActions(blocked) }));
    }
    for (rank, actions) in ranks.iter_mut().enumerate() {
        if tied && placement.first_and_last_ranks().contains(&rank) {
            actions.push(Action::ReduceTied);
        }
        actions.extend([Action::Exchange, Action::Update, Action::Snapshot]);
    }
    Ok(Programs { placement: placement.clone(), microbatches: *microbatches, ranks })
}

/// Returns the programs of a forward-only pass over all microbatches, for an evaluation. A rank runs each group of
/// consecutive chunks for all microbatches before its next group. Within a group, each microbatch runs through all
/// chunks before the next microbatch, because the results of these chunks stay on the rank.
pub fn forward_only_programs(placement: &Placement, microbatches: usize) -> Programs {
    let actions = |rank| -> Vec<Action> {
        let chunks: Vec<usize> = placement.chunks_of(rank).collect();
        let groups = chunks.chunk_by(|chunk, next| chunk + 1 == *next);
        let group_forwards = |group: &[usize]| -> Vec<Action> {
            let items = |microbatch| group.iter().map(move |&chunk| WorkItem { chunk, microbatch });
            (0..microbatches).flat_map(items).map(Action::Forward).collect()
        };
        groups.flat_map(group_forwards).collect()
    };
    let ranks: Vec<Vec<Action>> = (0..placement.ranks()).map(actions).collect();
    // Every rank runs its groups in ascending order of chunks. The lowest unfinished group can therefore always
    // proceed, so no deadlock occurs.
    let (ranks, _) = add_send_recv(placement, &ranks);
    Programs { placement: placement.clone(), microbatches, ranks }
}

/// Executes the schedule in ticks. In each tick, every rank that is not blocked executes one action. For each message,
/// adds the send and the receive in the tick that produces the message. The send directly follows the producing action.
/// The receive precedes the receiver's action of the same tick, so that the transfer overlaps the computation. Because
/// each receive belongs to the tick of its send, one message in flight per edge is enough.
///
/// Also returns the action at which each unfinished rank waits. This list is empty if every rank finishes.
fn add_send_recv(placement: &Placement, ranks: &[Vec<Action>]) -> (Vec<Vec<Action>>, Vec<ActionLocation>) {
    let mut lowered: Vec<Vec<Action>> = vec![Vec::new(); ranks.len()];
    let mut next = vec![0; ranks.len()];
    let mut outputs: FxHashSet<WorkItem> = FxHashSet::default();
    let mut gradients: FxHashSet<WorkItem> = FxHashSet::default();
    loop {
        let can_run = |action: &Action| match *action {
            Action::Forward(item) => placement.previous(item).is_none_or(|producer| outputs.contains(&producer)),
            Action::FullBackward(item) | Action::BackwardInput(item) => {
                placement.next(item).is_none_or(|producer| gradients.contains(&producer))
            }
            _ => true,
        };
        let due = |rank: usize| ranks[rank].get(next[rank]).copied();
        let tick: Vec<(usize, Action)> =
            (0..ranks.len()).filter_map(|rank| Some((rank, due(rank).filter(can_run)?))).collect();
        if tick.is_empty() {
            let waits = |rank| due(rank).map(|action| ActionLocation { rank, position: next[rank], action });
            let blocked = (0..ranks.len()).filter_map(waits).collect();
            return (lowered, blocked);
        }
        let sends: Vec<Option<Action>> = tick.iter().map(|(_, action)| send_after(*action, placement)).collect();
        for receive in sends.iter().flatten().filter_map(|send| send.counterpart()) {
            if let Some(rank) = receive.item().and_then(|item| placement.get_rank(item.chunk)) {
                lowered[rank].push(receive);
            }
        }
        for ((rank, action), send) in tick.into_iter().zip(sends) {
            next[rank] += 1;
            lowered[rank].push(action);
            lowered[rank].extend(send);
            match action {
                Action::Forward(item) => outputs.insert(item),
                Action::FullBackward(item) | Action::BackwardInput(item) => gradients.insert(item),
                _ => false,
            };
        }
    }
}

/// Returns the send that must follow `action`, or `None` if no other rank needs the result.
fn send_after(action: Action, placement: &Placement) -> Option<Action> {
    let send = action.output_send()?;
    let edge = send.edge()?;
    placement.crosses_ranks(edge.from, edge.to).then_some(send)
}
