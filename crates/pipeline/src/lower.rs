//! From a schedule to programs: adds the messages between ranks and what ends a step.

use crate::action::{Action, Unit};
use crate::placement::Placement;
use crate::program::Programs;
use crate::schedule::Schedule;
use crate::verify::{At, Mode, Stuck, Violation, check_ranks};
use std::collections::HashSet;

/// A schedule that can't be executed. Positions count in the schedule's own lists, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schedule {schedule}: {violation}")]
pub struct LowerError {
    /// The schedule's name.
    pub schedule: String,
    /// What is wrong with it.
    #[source]
    pub violation: Violation,
}

/// Adds to each rank its sends and receives, then `REDUCE_TIED` where a tied embedding is held (`tied`; the ranks of the
/// first and the last chunk, also if they are one), `EXCHANGE`, `UPDATE` and `SNAPSHOT`.
///
/// # Errors
/// If the schedule lacks or repeats work, has it in an impossible order, or its ranks would wait for each other.
pub fn lower(schedule: &Schedule, tied: bool) -> Result<Programs, LowerError> {
    let Schedule { name, placement, microbatches, ranks } = schedule;
    let refuse = |violation| LowerError { schedule: name.clone(), violation };
    check_ranks(placement, *microbatches, ranks, Mode::Schedule).map_err(refuse)?;
    let (mut ranks, stuck) = communicate(placement, ranks);
    if !stuck.is_empty() {
        return Err(refuse(Violation::Deadlock { stuck: Stuck(stuck) }));
    }
    for (rank, actions) in ranks.iter_mut().enumerate() {
        if tied && placement.ends().contains(&rank) {
            actions.push(Action::ReduceTied);
        }
        actions.extend([Action::Exchange, Action::Update, Action::Snapshot]);
    }
    Ok(Programs { placement: placement.clone(), microbatches: *microbatches, ranks })
}

/// A forward-only pass over all microbatches. A rank with several chunks takes one chunk after the other.
pub fn evaluation(placement: &Placement, microbatches: usize) -> Programs {
    let units = |chunk| (0..microbatches).map(move |microbatch| Action::Forward(Unit { chunk, microbatch }));
    let ranks = (0..placement.ranks()).map(|rank| placement.chunks_of(rank).flat_map(units).collect());
    // Chunks ascend on every rank, so the lowest unfinished one can always go on: nothing gets stuck.
    let (ranks, _) = communicate(placement, &ranks.collect::<Vec<_>>());
    Programs { placement: placement.clone(), microbatches, ranks }
}

/// Walks all ranks in ticks of one action each, and puts every message on both sides into the tick in which it is made:
/// the send right behind its maker, the receive ahead of whatever the receiver does meanwhile, so that the message
/// travels beside that. Every receive stands before its send in this order, so one message in flight an edge is enough.
///
/// Also returns where ranks got stuck, empty if none did.
fn communicate(placement: &Placement, ranks: &[Vec<Action>]) -> (Vec<Vec<Action>>, Vec<At>) {
    let mut lowered: Vec<Vec<Action>> = vec![Vec::new(); ranks.len()];
    let mut next = vec![0; ranks.len()];
    let mut outputs: HashSet<Unit> = HashSet::new();
    let mut gradients: HashSet<Unit> = HashSet::new();
    loop {
        let can_run = |action: &Action| match *action {
            Action::Forward(Unit { chunk, microbatch }) => {
                chunk == 0 || outputs.contains(&Unit { chunk: chunk - 1, microbatch })
            }
            Action::Backward(Unit { chunk, microbatch }) | Action::BackwardInput(Unit { chunk, microbatch }) => {
                placement.is_last(chunk) || gradients.contains(&Unit { chunk: chunk + 1, microbatch })
            }
            _ => true,
        };
        let due = |rank: usize| ranks[rank].get(next[rank]).copied();
        let tick: Vec<(usize, Action)> =
            (0..ranks.len()).filter_map(|rank| Some((rank, due(rank).filter(can_run)?))).collect();
        if tick.is_empty() {
            let waits = |rank| due(rank).map(|action| At { rank, position: next[rank], action });
            let stuck = (0..ranks.len()).filter_map(waits).collect();
            return (lowered, stuck);
        }
        let sends: Vec<Option<Action>> = tick.iter().map(|(_, action)| sent_after(*action, placement)).collect();
        for receive in sends.iter().flatten().filter_map(|send| send.counterpart()) {
            if let Some(rank) = receive.unit().and_then(|unit| placement.owner(unit.chunk)) {
                lowered[rank].push(receive);
            }
        }
        for ((rank, action), send) in tick.into_iter().zip(sends) {
            next[rank] += 1;
            lowered[rank].push(action);
            lowered[rank].extend(send);
            match action {
                Action::Forward(unit) => outputs.insert(unit),
                Action::Backward(unit) | Action::BackwardInput(unit) => gradients.insert(unit),
                _ => false,
            };
        }
    }
}

/// What another rank waits for once `action` is done.
fn sent_after(action: Action, placement: &Placement) -> Option<Action> {
    let send = match action {
        Action::Forward(unit) => Action::SendForward(unit),
        Action::Backward(unit) | Action::BackwardInput(unit) => Action::SendBackward(unit),
        _ => return None,
    };
    let edge = send.edge()?;
    placement.crosses(edge.from, edge.to).then_some(send)
}
