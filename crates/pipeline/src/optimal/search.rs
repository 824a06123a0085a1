//! Beam search for a good schedule to begin with, then depth-first branch and bound.

use std::collections::HashMap;

use super::state::{PartialSchedule, SearchProblem};
use super::{Found, TOLERANCE};

/// States kept of those with equally many actions done, in the search for a good schedule to begin with.
const BEAM_WIDTH: usize = 500;
/// Remembered states with the same actions done, and all of them: more would cost more time or memory than they save.
const MAX_SAME_ACTIONS: usize = 8;
const MAX_REMEMBERED: usize = 2_000_000;

pub(super) struct Search<'a> {
    problem: &'a SearchProblem<'a>,
    best: Option<Found>,
    states: u64,
    max_states: u64,
    /// Times of states that were searched, by the actions done.
    remembered: HashMap<Vec<[u8; 4]>, Vec<Vec<f64>>>,
    kept: usize,
}

/// The result of a search.
pub(super) struct SearchResult {
    /// The best schedule.
    pub(super) best: Option<Found>,
    /// No schedule that was left out is shorter; infinite if none was.
    pub(super) open_bound: f64,
    /// States that were looked at.
    pub(super) states: u64,
}

impl<'a> Search<'a> {
    /// Searches for something better than `best`.
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

    /// Notes a complete schedule if it is the best so far.
    fn complete(&mut self, state: &PartialSchedule) {
        if state.seconds() < self.bound_to_beat() {
            self.best = Some((state.seconds(), state.ranks.iter().map(|rank| rank.actions.clone()).collect()));
        }
    }

    /// The branches of a state, each with its lower bound, those that can beat the best schedule, the most promising
    /// first.
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

    /// Keeps the best states after each action: finds a good schedule quickly.
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

    /// Searches everything below a state, depth first; returns a lower bound of what was left out.
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

    /// Whether a state with the same actions done was searched that is nowhere later; otherwise remembers this one.
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
