//! Checks the list of each rank. The lists of the other ranks matter only for two facts: whether the embedding is tied,
//! and whether the pipeline has replicas.

use rustc_hash::FxHashMap;

use super::violation::Violation;
use crate::action::Action;
use crate::placement::Placement;
use crate::program::ActionLocation;
use crate::work_item::WorkItem;

/// The kind of list that is checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// A schedule, which has only forwards (F), full backwards (B) and the two parts of split backwards (I and W).
    /// Inputs from other ranks are not checked, because lowering adds their messages later.
    Schedule,
    /// A lowered training step.
    Training,
    /// A lowered evaluation.
    Evaluation,
}

/// Checks the list of each rank. If the list of any rank reduces a tied embedding, the lists of the first and the last
/// chunk's ranks must do so too.
pub(crate) fn check_ranks(
    placement: &Placement,
    microbatches: usize,
    ranks: &[Vec<Action>],
    kind: ProgramKind,
) -> Result<(), Violation> {
    if placement.chunks() == 0 || microbatches == 0 {
        return Err(Violation::Empty { chunks: placement.chunks(), microbatches });
    }
    if ranks.len() != placement.ranks() {
        return Err(Violation::RankCountMismatch { expected: placement.ranks(), found: ranks.len() });
    }
    let has = |wanted| ranks.iter().flatten().any(|action| *action == wanted);
    let (tied, replicated) =
        (has(Action::ReduceTied), ranks.iter().flatten().any(|action| action.is_between_replicas()));
    for (rank, actions) in ranks.iter().enumerate() {
        let mut checker = RankChecker {
            placement,
            microbatches,
            kind,
            tied,
            replicated,
            rank,
            seen: FxHashMap::default(),
            losses: 0,
            gradients: FxHashMap::default(),
        };
        for (position, &action) in actions.iter().enumerate() {
            checker.check_action(ActionLocation { rank, position, action })?;
        }
        checker.check_complete(actions.len())?;
    }
    Ok(())
}

/// The check of one rank's list, action by action. `seen` maps each checked action to its position. `losses` and
/// `gradients` count the checked losses and, for each chunk, the checked weight gradients.
struct RankChecker<'a> {
    placement: &'a Placement,
    microbatches: usize,
    kind: ProgramKind,
    tied: bool,
    replicated: bool,
    rank: usize,
    seen: FxHashMap<Action, usize>,
    losses: usize,
    gradients: FxHashMap<usize, usize>,
}

impl RankChecker<'_> {
    fn check_action(&mut self, location: ActionLocation) -> Result<(), Violation> {
        self.check_allowed(location)?;
        self.check_item(location)?;
        self.check_once(location)?;
        if self.has_executed(Action::Exchange)
            && !matches!(location.action, Action::Update | Action::Gather(_) | Action::Snapshot)
        {
            return Err(Violation::AfterExchange { location });
        }
        if let Some(needs) = self.missing_dependency(location.action) {
            return Err(Violation::MissingDependency { location, needs });
        }
        self.check_microbatch_order(location)?;
        self.seen.insert(location.action, location.position);
        Ok(())
    }

    fn check_allowed(&self, location: ActionLocation) -> Result<(), Violation> {
        let allowed = match self.kind {
            ProgramKind::Schedule if !location.action.is_compute() => "a schedule may hold only F, B, I and W",
            ProgramKind::Evaluation if !forward_only(location.action) => {
                "an evaluation may hold only F, SEND_F and RECV_F"
            }
            _ if location.action == Action::ReduceTied
                && !self.placement.first_and_last_ranks().contains(&self.rank) =>
            {
                "only the ranks of the first and the last chunk reduce a tied embedding"
            }
            _ => return Ok(()),
        };
        Err(Violation::NotAllowed { location, allowed })
    }

    fn check_item(&self, location: ActionLocation) -> Result<(), Violation> {
        let Some(chunk) = location.action.chunk() else { return Ok(()) };
        let chunks = self.placement.chunks();
        let is_microbatch = location.action.item().is_none_or(|item| item.microbatch < self.microbatches);
        let owner = self.placement.get_rank(chunk).filter(|_| is_microbatch);
        match owner {
            None => return Err(Violation::OutOfRange { location, chunks, microbatches: self.microbatches }),
            Some(owner) if owner != self.rank => return Err(Violation::WrongRank { location, owner }),
            Some(_) => {}
        }
        let is_message = location.action.is_send() || location.action.is_recv();
        let crosses = location.action.edge().is_some_and(|edge| self.placement.crosses_ranks(edge.from, edge.to));
        if is_message && !crosses { Err(Violation::NoMessage { location }) } else { Ok(()) }
    }

    fn check_once(&self, location: ActionLocation) -> Result<(), Violation> {
        let same = match location.action {
            Action::FullBackward(item) => vec![location.action, Action::BackwardInput(item)],
            Action::BackwardInput(item) => vec![location.action, Action::FullBackward(item)],
            action => vec![action],
        };
        for first in same {
            if let Some(&position) = self.seen.get(&first) {
                return Err(Violation::Duplicate { location, first, position });
            }
        }
        Ok(())
    }

    /// Returns the first action that `action` needs on this rank and that has not been executed before it.
    fn missing_dependency(&self, action: Action) -> Option<Action> {
        let missing = |needed: Action| (!self.has_executed(needed)).then_some(needed);
        match action {
            Action::Forward(item) => self.missing_input(item),
            Action::FullBackward(item) | Action::BackwardInput(item) => {
                missing(Action::Forward(item)).or_else(|| self.missing_gradient(item))
            }
            Action::BackwardWeight(item) => missing(Action::BackwardInput(item)),
            Action::SendForward(item) => missing(Action::Forward(item)),
            Action::SendBackward(item) => self.input_gradient_missing(item),
            Action::RecvForward(_) | Action::RecvBackward(_) => None,
            // The replicas may have different numbers of microbatches, and must still send in the same order. Each rank
            // therefore reduces its chunks from the last to the first.
            Action::Reduce(chunk) => {
                let later = self.placement.chunks_of(self.rank).filter(|other| *other > chunk);
                self.first_incomplete_gradient_of(chunk).or_else(|| later.map(Action::Reduce).find_map(missing))
            }
            Action::ReduceTied => self.first_incomplete_gradient().or_else(|| self.missing_of_chunks(Action::Reduce)),
            // No check of the gradients is needed here: other checks reject a gradient after EXCHANGE and a missing
            // gradient, so all gradients precede EXCHANGE.
            Action::Exchange => {
                let reduces = self.tied && self.placement.first_and_last_ranks().contains(&self.rank);
                let reduced = self.missing_of_chunks(Action::Reduce);
                reduced.or_else(|| reduces.then(|| missing(Action::ReduceTied)).flatten())
            }
            Action::Update => missing(Action::Exchange),
            Action::Gather(chunk) => {
                let earlier = self.placement.chunks_of(self.rank).take_while(|other| *other < chunk);
                missing(Action::Update).or_else(|| earlier.map(Action::Gather).find_map(missing))
            }
            // In the next step, the first F of a chunk waits for the GATHER. In this step, no F may follow EXCHANGE, so
            // no F needs the GATHER, and the check that the GATHER exists is enough.
            Action::Snapshot => missing(Action::Update).or_else(|| self.missing_of_chunks(Action::Gather)),
        }
    }

    fn missing_input(&self, item: WorkItem) -> Option<Action> {
        let producer = self.placement.previous(item)?;
        let needed = if !self.placement.crosses_ranks(producer.chunk, item.chunk) {
            Action::Forward(producer)
        } else if self.kind == ProgramKind::Schedule {
            return None;
        } else {
            Action::RecvForward(item)
        };
        (!self.has_executed(needed)).then_some(needed)
    }

    fn missing_gradient(&self, item: WorkItem) -> Option<Action> {
        let producer = self.placement.next(item)?;
        if !self.placement.crosses_ranks(item.chunk, producer.chunk) {
            self.input_gradient_missing(producer)
        } else if self.kind == ProgramKind::Schedule || self.has_executed(Action::RecvBackward(item)) {
            None
        } else {
            Some(Action::RecvBackward(item))
        }
    }

    /// Returns B if neither B nor I of the item has been executed.
    fn input_gradient_missing(&self, item: WorkItem) -> Option<Action> {
        let whole = Action::FullBackward(item);
        (!self.has_executed(whole) && !self.has_executed(Action::BackwardInput(item))).then_some(whole)
    }

    /// Returns the first missing `action` of this rank's chunks. Every chunk needs one if the pipeline has replicas.
    fn missing_of_chunks(&self, action: fn(usize) -> Action) -> Option<Action> {
        let mut all = self.placement.chunks_of(self.rank).map(action).filter(|_| self.replicated);
        all.find(|action| !self.has_executed(*action))
    }

    /// Returns the action that completes the first incomplete weight gradient of this rank.
    fn first_incomplete_gradient(&self) -> Option<Action> {
        self.placement.chunks_of(self.rank).find_map(|chunk| self.first_incomplete_gradient_of(chunk))
    }

    /// Returns the action that completes the first incomplete weight gradient of `chunk`.
    fn first_incomplete_gradient_of(&self, chunk: usize) -> Option<Action> {
        (0..self.microbatches).find_map(|microbatch| {
            let item = WorkItem { chunk, microbatch };
            let (whole, weight) = (Action::FullBackward(item), Action::BackwardWeight(item));
            let split = self.has_executed(Action::BackwardInput(item));
            (!self.has_executed(whole) && !self.has_executed(weight)).then_some(if split { weight } else { whole })
        })
    }

    fn check_microbatch_order(&mut self, location: ActionLocation) -> Result<(), Violation> {
        let (count, what) = match location.action {
            Action::Forward(item) if self.placement.is_last(item.chunk) => (&mut self.losses, "the losses"),
            Action::FullBackward(item) | Action::BackwardWeight(item) => {
                (self.gradients.entry(item.chunk).or_default(), "the weight gradients")
            }
            _ => return Ok(()),
        };
        let expected = *count;
        *count += 1;
        match location.action.item() {
            Some(item) if item.microbatch != expected => Err(Violation::OutOfOrder { location, what, expected }),
            _ => Ok(()),
        }
    }

    /// Checks at the end of the list that no action is missing.
    fn check_complete(&self, position: usize) -> Result<(), Violation> {
        let missing = match self.kind {
            ProgramKind::Schedule => self.missing_compute(),
            ProgramKind::Evaluation => self.missing_forward().or_else(|| self.missing_message()),
            ProgramKind::Training => {
                let step = [Action::Exchange, Action::Update, Action::Snapshot];
                let step = step.into_iter().find(|action| !self.has_executed(*action));
                self.missing_compute().or_else(|| self.missing_message()).or(step)
            }
        };
        missing.map_or(Ok(()), |action| Err(Violation::Missing { rank: self.rank, position, action }))
    }

    fn missing_compute(&self) -> Option<Action> {
        self.missing_forward().or_else(|| self.first_incomplete_gradient())
    }

    fn missing_forward(&self) -> Option<Action> {
        self.items().map(Action::Forward).find(|forward| !self.has_executed(*forward))
    }

    /// Returns the first missing send. Only another rank needs a send, so the dependencies of this rank do not reveal
    /// that it is missing. A missing receive needs no check here, because an action of this rank needs the receive.
    fn missing_message(&self) -> Option<Action> {
        self.items().find_map(|item| {
            let training = self.kind == ProgramKind::Training;
            let sends = [Some(Action::SendForward(item)), training.then_some(Action::SendBackward(item))];
            let crosses = |send: &Action| {
                send.consumer(self.placement).is_some_and(|to| self.placement.crosses_ranks(item.chunk, to.chunk))
            };
            sends.into_iter().flatten().filter(crosses).find(|send| !self.has_executed(*send))
        })
    }

    fn items(&self) -> impl Iterator<Item = WorkItem> + '_ {
        let items = |chunk| (0..self.microbatches).map(move |microbatch| WorkItem { chunk, microbatch });
        self.placement.chunks_of(self.rank).flat_map(items)
    }

    fn has_executed(&self, action: Action) -> bool {
        self.seen.contains_key(&action)
    }
}

fn forward_only(action: Action) -> bool {
    matches!(action, Action::Forward(_) | Action::SendForward(_) | Action::RecvForward(_))
}
