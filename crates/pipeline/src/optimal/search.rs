//! Searches for schedules: a beam search finds a good initial schedule, and depth-first branch and bound improves it.

use std::collections::HashMap;

use super::state::{PartialSchedule, SearchProblem};
use super::{Found, TOLERANCE};

/// The beam width: the number of states that the beam search keeps after each action.
const BEAM_WIDTH: usize = 500;
/// The maximal numbers of remembered states, first with the same executed actions and then in total. More states would
/// cost more time or memory than they save.
const MAX_SAME_ACTIONS: usize = 8;
const MAX_REMEMBERED: usize = 2_000_000;

pub(super) struct Search<'a> {
    problem: &'a SearchProblem<'a>,
    best: Option<Found>,
    states: u64,
    max_states: u64,
    /// The times of searched states, by the executed actions of the states.
    remembered: HashMap<Vec<[u32; 4]>, Vec<Vec<f64>>>,
    /// The number of states in `remembered`.
    kept: usize,
}

/// The result of a search.
pub(super) struct SearchResult {
    /// The best schedule.
    pub(super) best: Option<Found>,
    /// A lower bound of the seconds of all schedules that were not searched. It is infinite if the search was
    /// exhaustive.
    pub(super) open_bound: f64,
    /// The number of visited states.
    pub(super) states: u64,
}

impl<'a> Search<'a> {
    /// Creates a search for a schedule that is better than `best`.
    pub(super) fn new(problem: &'a SearchProblem<'a>, best: Option<Found>, max_states: u64) -> Search<'a> {
        Search { problem, best, states: 0, max_states, remembered: HashMap::new(), kept: 0 }
    }

    pub(super) fn run(mut self) -> SearchResult {
        let root = PartialSchedule::new(self.problem);
        self.beam(root.clone());
        let open_bound = self.descend(root);
        SearchResult { best: self.best, open_bound, states: self.states }
    }

    fn bound_to_beat(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(seconds, _)| seconds * (1.0 - TOLERANCE))
    }

    /// Records a complete schedule if it is the best so far.
    fn complete(&mut self, state: &PartialSchedule) {
        if state.seconds() < self.bound_to_beat() {
            self.best = Some((state.seconds(), state.ranks.iter().map(|rank| rank.actions.clone()).collect()));
        }
    }

    /// Returns the branches of a state that can beat the best schedule, each with its lower bound, lowest bound first.
    fn children(&self, state: &PartialSchedule) -> Vec<(f64, PartialSchedule)> {
        let mut children: Vec<(f64, PartialSchedule)> = Vec::new();
        for child in state.branches(self.problem) {
            let bound = child.lower_bound(self.problem);
            if bound < self.bound_to_beat() {
                children.push((bound, child));
            }
        }
        children.sort_by(|a, b| a.0.total_cmp(&b.0));
        children
    }

    /// Runs a beam search, which keeps the best states after each action and finds a good schedule quickly.
    fn beam(&mut self, root: PartialSchedule) {
        let mut states = vec![(0.0, root)];
        while !states.is_empty() {
            let mut next = Vec::new();
            for (_, state) in &states {
                self.states += 1;
                if state.is_done(self.problem) {
                    self.complete(state);
                } else {
                    next.extend(self.children(state));
                }
            }
            let total = |state: &PartialSchedule| state.ranks.iter().map(|rank| rank.time).sum::<f64>();
            next.sort_by(|a, b| a.0.total_cmp(&b.0).then(total(&a.1).total_cmp(&total(&b.1))));
            next.truncate(BEAM_WIDTH);
            states = next;
        }
    }

    /// Searches all successors of a state, depth first. Returns a lower bound of the schedules that were not searched.
    fn descend(&mut self, root: PartialSchedule) -> f64 {
        let mut open = vec![(root.lower_bound(self.problem), root)];
        while let Some((bound, state)) = open.pop() {
            if bound >= self.bound_to_beat() {
                continue;
            }
            if state.is_done(self.problem) {
                self.complete(&state);
                continue;
            }
            if self.states >= self.max_states {
                return open.iter().map(|(bound, _)| *bound).fold(bound, f64::min);
            }
            self.states += 1;
            if !self.is_dominated(&state) {
                open.extend(self.children(&state).into_iter().rev());
            }
        }
        f64::INFINITY
    }

    /// Whether a remembered state dominates this state. The remembered state then has the same executed actions, and
    /// none of its times is later than this state's. If no state dominates this state, remembers it and forgets the
    /// states that it dominates.
    fn is_dominated(&mut self, state: &PartialSchedule) -> bool {
        let times = state.times();
        let full = self.kept >= MAX_REMEMBERED;
        let same = self.remembered.entry(state.done()).or_default();
        if same.iter().any(|other| other.iter().zip(&times).all(|(other, own)| other <= own)) {
            return true;
        }
        let before = same.len();
        same.retain(|other| !times.iter().zip(other).all(|(own, other)| own <= other));
        if same.len() < MAX_SAME_ACTIONS && !full {
            same.push(times);
        }
        self.kept = self.kept + same.len() - before;
        false
    }
}
