//! What a single rank's list must satisfy, whatever the other ranks do.

use super::violation::{At, Violation};
use crate::action::{Action, Unit};
use crate::placement::Placement;
use std::collections::HashMap;

/// What kind of list it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// F, B, I and W alone, before lowering: inputs from other ranks are lowering's concern.
    Schedule,
    /// A lowered training step.
    Training,
    /// A lowered evaluation.
    Evaluation,
}

/// Checks every rank's list by itself, and that all ranks agree on whether an embedding is tied.
pub(crate) fn check_ranks(
    placement: &Placement,
    microbatches: usize,
    ranks: &[Vec<Action>],
    mode: Mode,
) -> Result<(), Violation> {
    if placement.chunks() == 0 || microbatches == 0 {
        return Err(Violation::Empty { chunks: placement.chunks(), microbatches });
    }
    if ranks.len() != placement.ranks() {
        return Err(Violation::Ranks { expected: placement.ranks(), found: ranks.len() });
    }
    let tied = ranks.iter().flatten().any(|action| *action == Action::ReduceTied);
    for (rank, actions) in ranks.iter().enumerate() {
        let mut ledger = Ledger {
            placement,
            microbatches,
            mode,
            tied,
            rank,
            seen: HashMap::new(),
            losses: 0,
            gradients: HashMap::new(),
        };
        for (position, &action) in actions.iter().enumerate() {
            ledger.enter(At { rank, position, action })?;
        }
        ledger.close(actions.len())?;
    }
    Ok(())
}

/// What a rank has done so far.
struct Ledger<'a> {
    placement: &'a Placement,
    microbatches: usize,
    mode: Mode,
    tied: bool,
    rank: usize,
    seen: HashMap<Action, usize>,
    losses: usize,
    gradients: HashMap<usize, usize>,
}

impl Ledger<'_> {
    fn enter(&mut self, at: At) -> Result<(), Violation> {
        self.check_allowed(at)?;
        self.check_unit(at)?;
        self.check_once(at)?;
        if self.has(Action::Exchange) && !matches!(at.action, Action::Update | Action::Snapshot) {
            return Err(Violation::AfterExchange { at });
        }
        if let Some(needs) = self.lacking(at.action) {
            return Err(Violation::TooEarly { at, needs });
        }
        self.check_microbatch_order(at)?;
        self.seen.insert(at.action, at.position);
        Ok(())
    }

    fn check_allowed(&self, at: At) -> Result<(), Violation> {
        let allowed = match self.mode {
            Mode::Schedule if !at.action.is_compute() => "a schedule holds F, B, I and W",
            Mode::Evaluation if !forward_only(at.action) => "an evaluation holds F, SEND_F and RECV_F",
            _ if at.action == Action::ReduceTied && !self.placement.ends().contains(&self.rank) => {
                "the ranks of the first and the last chunk reduce a tied embedding, those"
            }
            _ => return Ok(()),
        };
        Err(Violation::NotAllowed { at, allowed })
    }

    fn check_unit(&self, at: At) -> Result<(), Violation> {
        let Some(unit) = at.action.unit() else { return Ok(()) };
        let chunks = self.placement.chunks();
        let owner = self.placement.owner(unit.chunk).filter(|_| unit.microbatch < self.microbatches);
        match owner {
            None => return Err(Violation::Unknown { at, chunks, microbatches: self.microbatches }),
            Some(owner) if owner != self.rank => return Err(Violation::Foreign { at, owner }),
            Some(_) => {}
        }
        let is_message = at.action.is_send() || at.action.is_recv();
        let crosses = at.action.edge().is_some_and(|edge| self.placement.crosses(edge.from, edge.to));
        if is_message && !crosses { Err(Violation::NoMessage { at }) } else { Ok(()) }
    }

    fn check_once(&self, at: At) -> Result<(), Violation> {
        let same = match at.action {
            Action::Backward(unit) => vec![at.action, Action::BackwardInput(unit)],
            Action::BackwardInput(unit) => vec![at.action, Action::Backward(unit)],
            action => vec![action],
        };
        for first in same {
            if let Some(&position) = self.seen.get(&first) {
                return Err(Violation::Repeated { at, first, position });
            }
        }
        Ok(())
    }

    /// The first thing that has to be on this rank before `action` and isn't.
    fn lacking(&self, action: Action) -> Option<Action> {
        let lacks = |needed: Action| (!self.has(needed)).then_some(needed);
        match action {
            Action::Forward(unit) => self.lacking_input(unit),
            Action::Backward(unit) | Action::BackwardInput(unit) => {
                lacks(Action::Forward(unit)).or_else(|| self.lacking_gradient(unit))
            }
            Action::BackwardWeight(unit) => lacks(Action::BackwardInput(unit)),
            Action::SendForward(unit) => lacks(Action::Forward(unit)),
            Action::SendBackward(unit) => self.lacks_input_gradient(unit),
            Action::RecvForward(_) | Action::RecvBackward(_) => None,
            Action::ReduceTied => self.unfinished(),
            // That the gradients are complete follows: none may come behind EXCHANGE, and none may be missing.
            Action::Exchange => {
                let reduces = self.tied && self.placement.ends().contains(&self.rank);
                reduces.then(|| lacks(Action::ReduceTied)).flatten()
            }
            Action::Update => lacks(Action::Exchange),
            Action::Snapshot => lacks(Action::Update),
        }
    }

    fn lacking_input(&self, unit: Unit) -> Option<Action> {
        let before = Unit { chunk: unit.chunk.checked_sub(1)?, ..unit };
        let needed = if !self.placement.crosses(before.chunk, unit.chunk) {
            Action::Forward(before)
        } else if self.mode == Mode::Schedule {
            return None;
        } else {
            Action::RecvForward(unit)
        };
        (!self.has(needed)).then_some(needed)
    }

    fn lacking_gradient(&self, unit: Unit) -> Option<Action> {
        let after = Unit { chunk: unit.chunk + 1, ..unit };
        if self.placement.is_last(unit.chunk) {
            None
        } else if !self.placement.crosses(unit.chunk, after.chunk) {
            self.lacks_input_gradient(after)
        } else if self.mode == Mode::Schedule || self.has(Action::RecvBackward(unit)) {
            None
        } else {
            Some(Action::RecvBackward(unit))
        }
    }

    /// B, if neither B nor I of the unit is done.
    fn lacks_input_gradient(&self, unit: Unit) -> Option<Action> {
        let whole = Action::Backward(unit);
        (!self.has(whole) && !self.has(Action::BackwardInput(unit))).then_some(whole)
    }

    /// The first of this rank's weight gradients that is not complete.
    fn unfinished(&self) -> Option<Action> {
        self.units().find_map(|unit| {
            let (whole, weight) = (Action::Backward(unit), Action::BackwardWeight(unit));
            let split = self.has(Action::BackwardInput(unit));
            (!self.has(whole) && !self.has(weight)).then_some(if split { weight } else { whole })
        })
    }

    fn check_microbatch_order(&mut self, at: At) -> Result<(), Violation> {
        let (count, what) = match at.action {
            Action::Forward(unit) if self.placement.is_last(unit.chunk) => (&mut self.losses, "the losses"),
            Action::Backward(unit) | Action::BackwardWeight(unit) => {
                (self.gradients.entry(unit.chunk).or_default(), "the weight gradients")
            }
            _ => return Ok(()),
        };
        let expected = *count;
        *count += 1;
        match at.action.unit() {
            Some(unit) if unit.microbatch != expected => Err(Violation::OutOfOrder { at, what, expected }),
            _ => Ok(()),
        }
    }

    /// At the end of the list: everything that has to be there is.
    fn close(&self, position: usize) -> Result<(), Violation> {
        let missing = match self.mode {
            Mode::Schedule => self.missing_compute(),
            Mode::Evaluation => self.missing_forward().or_else(|| self.missing_message()),
            Mode::Training => {
                let step = [Action::Exchange, Action::Update, Action::Snapshot];
                let step = step.into_iter().find(|action| !self.has(*action));
                self.missing_compute().or_else(|| self.missing_message()).or(step)
            }
        };
        missing.map_or(Ok(()), |action| Err(Violation::Missing { rank: self.rank, position, action }))
    }

    fn missing_compute(&self) -> Option<Action> {
        self.missing_forward().or_else(|| self.unfinished())
    }

    fn missing_forward(&self) -> Option<Action> {
        self.units().map(Action::Forward).find(|forward| !self.has(*forward))
    }

    /// Receives are needed by what consumes them; a send is needed by another rank, so only this finds it missing.
    fn missing_message(&self) -> Option<Action> {
        self.units().find_map(|unit| {
            let next = self.placement.crosses(unit.chunk, unit.chunk + 1).then_some(Action::SendForward(unit));
            let backward = self.mode == Mode::Training && unit.chunk > 0;
            let back = backward && self.placement.crosses(unit.chunk, unit.chunk - 1);
            let back = back.then_some(Action::SendBackward(unit));
            next.into_iter().chain(back).find(|send| !self.has(*send))
        })
    }

    fn units(&self) -> impl Iterator<Item = Unit> + '_ {
        let of = |chunk| (0..self.microbatches).map(move |microbatch| Unit { chunk, microbatch });
        self.placement.chunks_of(self.rank).flat_map(of)
    }

    fn has(&self, action: Action) -> bool {
        self.seen.contains_key(&action)
    }
}

fn forward_only(action: Action) -> bool {
    matches!(action, Action::Forward(_) | Action::SendForward(_) | Action::RecvForward(_))
}
