//! The schedule with the shortest step for given costs and memory, by branch and bound.
//!
//! One chunk a rank. All microbatches cost the same, so some optimal schedule runs the forwards of each rank in microbatch
//! order, and likewise its I and its W; what is searched is how each rank interleaves them. Branches are those of Giffler
//! and Thompson (1960): of all actions that could come next, take the one that ends first; on its rank, only actions that
//! can begin before that end need to be tried, because any other could wait for it. Where memory is short, an action that
//! takes memory can't always be put before others: then not to run it next is a branch too.

use std::collections::HashMap;

use crate::action::{Action, WorkItem};
use crate::activation_memory;
use crate::lower::lower;
use crate::placement::Placement;
use crate::schedule::{Schedule, gpipe, interleaved_zero_bubble, one_f_one_b};
use crate::simulate::{ChunkCosts, Costs, simulate};

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimalSchedule {
    /// The best schedule found.
    pub schedule: Schedule,
    /// Its seconds until the last computation, if every message takes the link's time and no more.
    pub seconds: f64,
    /// No schedule takes fewer seconds: equal to `seconds` if the search was finished.
    pub lower_bound: f64,
    /// States that were looked at.
    pub states: u64,
}

impl OptimalSchedule {
    /// Whether no schedule within the memory is faster.
    pub fn is_proven(&self) -> bool {
        self.lower_bound >= self.seconds * (1.0 - TOLERANCE)
    }
}

/// Times closer than this, relatively, are the same.
const TOLERANCE: f64 = 1e-9;
/// States kept of those with equally many actions done, in the search for a good schedule to begin with.
const BEAM_WIDTH: usize = 500;
/// Remembered states with the same actions done, and all of them: more would cost more time or memory than they save.
const MAX_SAME_ACTIONS: usize = 8;
const MAX_REMEMBERED: usize = 2_000_000;

/// Searches for the shortest schedule of `microbatches` microbatches over `costs.chunks.len()` ranks with one chunk each, of
/// which each holds at most `limits[rank]` bytes of activations and inputs of weight gradients. Gives up after
/// `max_states` states, and has then proven less. None if nothing that fits was found.
pub fn optimal_schedule(
    costs: &Costs,
    microbatches: usize,
    limits: &[u64],
    max_states: u64,
) -> Option<OptimalSchedule> {
    let problem = Problem { chunks: &costs.chunks, link_seconds: costs.link_seconds, microbatches, limits };
    let best = best_known(costs, microbatches, limits);
    let mut search = Search { problem: &problem, best, states: 0, max_states, remembered: HashMap::new(), kept: 0 };
    let root = State::new(&problem);
    search.beam(root.clone());
    let open_bound = search.descend(root);
    let (seconds, ranks) = search.best?;
    let schedule = Schedule {
        name: "Optimal".to_owned(),
        placement: Placement::linear(costs.chunks.len()),
        microbatches,
        ranks: ranks.into_iter().map(merge_backwards).collect(),
    };
    Some(OptimalSchedule { schedule, seconds, lower_bound: open_bound.min(seconds), states: search.states })
}

/// The best of the schedules that are known by name, with its seconds.
fn best_known(costs: &Costs, microbatches: usize, limits: &[u64]) -> Option<(f64, Vec<Vec<Action>>)> {
    let ranks = costs.chunks.len();
    let varying = |chunk: &ChunkCosts| ChunkCosts { static_bytes: 0, temporary_bytes: 0, ..*chunk };
    let computations = Costs {
        chunks: costs.chunks.iter().map(varying).collect(),
        link_seconds: costs.link_seconds,
        sends_in_flight: microbatches.max(1),
        ..Costs::uniform(0)
    };
    let fits = |schedule: &Schedule| {
        let peaks = activation_memory::peak_bytes(&schedule.placement, &schedule.ranks, &computations);
        peaks.iter().zip(limits).all(|(peak, limit)| peak <= limit)
    };
    let seconds = |schedule: &Schedule| Some(simulate(&lower(schedule, false).ok()?, &computations).makespan);
    [one_f_one_b(ranks, microbatches), gpipe(ranks, microbatches), interleaved_zero_bubble(ranks, 1, microbatches)]
        .into_iter()
        .filter(fits)
        .filter_map(|schedule| Some((seconds(&schedule)?, schedule.ranks)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

/// I directly followed by the W of the same item is B on the first rank, where nobody waits for the result of I.
fn merge_backwards(actions: Vec<Action>) -> Vec<Action> {
    let mut merged: Vec<Action> = Vec::with_capacity(actions.len());
    for action in actions {
        match (action, merged.last_mut()) {
            (Action::BackwardWeight(item), Some(last)) if item.chunk == 0 && *last == Action::BackwardInput(item) => {
                *last = Action::FullBackward(item);
            }
            _ => merged.push(action),
        }
    }
    merged
}

struct Problem<'a> {
    chunks: &'a [ChunkCosts],
    link_seconds: f64,
    microbatches: usize,
    limits: &'a [u64],
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    /// I and W at once, which never holds the inputs of the weight gradients beside anything else.
    FullBackward,
    BackwardInput,
    BackwardWeight,
}

impl Kind {
    /// Index in [`Rank::is_postponed`] of an action that may take memory.
    fn postponed_index(self) -> Option<usize> {
        match self {
            Kind::Forward => Some(0),
            Kind::BackwardInput => Some(1),
            Kind::FullBackward | Kind::BackwardWeight => None,
        }
    }
}

impl Problem<'_> {
    /// Whether the action takes memory, and its rank can't hold all microbatches at once.
    fn memory_matters(&self, candidate: Candidate) -> bool {
        let ChunkCosts { activation_bytes, weight_gradient_bytes, .. } = self.chunks[candidate.rank];
        let takes = match candidate.kind {
            Kind::Forward => activation_bytes > 0,
            _ => weight_gradient_bytes > activation_bytes,
        };
        let most = activation_bytes.max(weight_gradient_bytes).saturating_mul(self.microbatches as u64);
        takes && most > self.limits[candidate.rank]
    }
}

/// What one rank has done.
#[derive(Clone, Debug)]
struct Rank {
    /// When its last action ended.
    time: f64,
    held_bytes: u64,
    forward_ends: Vec<f64>,
    backward_ends: Vec<f64>,
    weight_gradients: usize,
    actions: Vec<Action>,
    /// An action that takes memory and must not come next.
    is_postponed: [bool; 2],
}

#[derive(Clone, Debug)]
struct State {
    ranks: Vec<Rank>,
}

/// A possible next action.
#[derive(Copy, Clone, Debug)]
struct Candidate {
    rank: usize,
    kind: Kind,
    start: f64,
    end: f64,
}

impl State {
    fn new(problem: &Problem) -> State {
        let rank = Rank {
            time: 0.0,
            held_bytes: 0,
            forward_ends: Vec::new(),
            backward_ends: Vec::new(),
            weight_gradients: 0,
            actions: Vec::new(),
            is_postponed: [false; 2],
        };
        State { ranks: vec![rank; problem.chunks.len()] }
    }

    /// When the rank's next forward has its input; None if that is not computed yet.
    fn forward_ready(&self, problem: &Problem, rank: usize) -> Option<f64> {
        let next = self.ranks[rank].forward_ends.len();
        match rank.checked_sub(1) {
            _ if next == problem.microbatches => None,
            None => Some(0.0),
            Some(before) => Some(self.ranks[before].forward_ends.get(next)? + problem.link_seconds),
        }
    }

    /// The same of its next backward.
    fn backward_ready(&self, problem: &Problem, rank: usize) -> Option<f64> {
        let next = self.ranks[rank].backward_ends.len();
        let own = *self.ranks[rank].forward_ends.get(next)?;
        match self.ranks.get(rank + 1) {
            None => Some(own),
            Some(after) => Some(after.backward_ends.get(next)? + problem.link_seconds),
        }
    }

    /// What the rank can do next.
    fn candidates(&self, problem: &Problem, rank: usize) -> impl Iterator<Item = Candidate> {
        let state = &self.ranks[rank];
        let cost = &problem.chunks[rank];
        let free = problem.limits[rank].saturating_sub(state.held_bytes);
        let candidate = |kind: Kind, ready: f64, seconds: f64| {
            let start = state.time.max(ready);
            Candidate { rank, kind, start, end: start + seconds }
        };
        let forward = self.forward_ready(problem, rank).filter(|_| cost.activation_bytes <= free);
        let forward = forward.map(|ready| candidate(Kind::Forward, ready, cost.forward_seconds));
        let ready = self.backward_ready(problem, rank);
        let input = ready.filter(|_| cost.weight_gradient_bytes <= free.saturating_add(cost.activation_bytes));
        let input = input.map(|ready| candidate(Kind::BackwardInput, ready, cost.backward_input_seconds));
        // otherwise I and W do the same and are more flexible
        let needs_full = cost.weight_gradient_bytes > cost.activation_bytes;
        let full = ready.filter(|_| needs_full && state.weight_gradients == state.backward_ends.len());
        let both = cost.backward_input_seconds + cost.backward_weight_seconds;
        let full = full.map(|ready| candidate(Kind::FullBackward, ready, both));
        let pending = state.weight_gradients < state.backward_ends.len();
        let weight = pending.then(|| candidate(Kind::BackwardWeight, 0.0, cost.backward_weight_seconds));
        let may_come = |candidate: &Candidate| match candidate.kind.postponed_index() {
            Some(index) => !state.is_postponed[index],
            None => true,
        };
        [input, forward, full, weight].into_iter().flatten().filter(may_come).collect::<Vec<_>>().into_iter()
    }

    /// The states of which one leads to the best continuation.
    fn branches(&self, problem: &Problem) -> Vec<State> {
        let all = (0..self.ranks.len()).flat_map(|rank| self.candidates(problem, rank));
        let Some(first) = all.min_by(|a, b| a.end.total_cmp(&b.end)) else { return Vec::new() };
        let mut branches = Vec::new();
        for candidate in self.candidates(problem, first.rank).filter(|candidate| candidate.start < first.end) {
            let mut state = self.clone();
            state.apply(problem, candidate);
            branches.push(state);
        }
        if let Some(index) = first.kind.postponed_index().filter(|_| problem.memory_matters(first)) {
            let mut state = self.clone();
            state.ranks[first.rank].is_postponed[index] = true;
            branches.push(state);
        }
        branches
    }

    fn apply(&mut self, problem: &Problem, candidate: Candidate) {
        let Candidate { rank: chunk, kind, end, .. } = candidate;
        let cost = &problem.chunks[chunk];
        let rank = &mut self.ranks[chunk];
        let (forward, backward, weight) = (rank.forward_ends.len(), rank.backward_ends.len(), rank.weight_gradients);
        let item = |microbatch| WorkItem { chunk, microbatch };
        rank.time = end;
        rank.is_postponed = [false; 2];
        match kind {
            Kind::Forward => {
                rank.forward_ends.push(end);
                rank.held_bytes += cost.activation_bytes;
                rank.actions.push(Action::Forward(item(forward)));
            }
            Kind::BackwardInput => {
                rank.backward_ends.push(end);
                rank.held_bytes = rank.held_bytes + cost.weight_gradient_bytes - cost.activation_bytes;
                rank.actions.push(Action::BackwardInput(item(backward)));
            }
            Kind::FullBackward => {
                rank.backward_ends.push(end);
                rank.weight_gradients += 1;
                rank.held_bytes -= cost.activation_bytes;
                rank.actions.push(Action::FullBackward(item(backward)));
            }
            Kind::BackwardWeight => {
                rank.weight_gradients += 1;
                rank.held_bytes -= cost.weight_gradient_bytes;
                rank.actions.push(Action::BackwardWeight(item(weight)));
            }
        }
    }

    fn is_done(&self, problem: &Problem) -> bool {
        self.ranks.iter().all(|rank| rank.weight_gradients == problem.microbatches)
    }

    fn seconds(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.time).fold(0.0, f64::max)
    }

    /// No continuation ends earlier.
    fn lower_bound(&self, problem: &Problem) -> f64 {
        let count = self.ranks.len();
        let left = |done: usize| (problem.microbatches - done) as f64;
        // when each rank can have run its last forward
        let mut last_forward = vec![0.0f64; count];
        for rank in 0..count {
            let state = &self.ranks[rank];
            let forwards = left(state.forward_ends.len());
            last_forward[rank] = if forwards == 0.0 {
                state.forward_ends.last().copied().unwrap_or(0.0)
            } else {
                let seconds = problem.chunks[rank].forward_seconds;
                let own = state.time + forwards * seconds;
                let before = if rank > 0 { last_forward[rank - 1] + problem.link_seconds } else { 0.0 };
                own.max(before + seconds)
            };
        }
        let mut bound = 0.0f64;
        // when the next rank's last I can have ended, and when its next one can begin
        let (mut last_backward, mut next_backward) = (0.0f64, 0.0f64);
        for rank in (0..count).rev() {
            let (state, cost) = (&self.ranks[rank], &problem.chunks[rank]);
            let (forwards, backwards) = (left(state.forward_ends.len()), left(state.backward_ends.len()));
            let weights = left(state.weight_gradients);
            let pending = (state.backward_ends.len() - state.weight_gradients) as f64;
            let ChunkCosts { forward_seconds, backward_input_seconds, backward_weight_seconds, .. } = *cost;
            let computations = forwards * forward_seconds + backwards * backward_input_seconds;
            let mut idle = 0.0;
            if backwards > 0.0 {
                let next = state.backward_ends.len();
                let arrival = match self.ranks.get(rank + 1) {
                    None => state.forward_ends.get(next).copied().unwrap_or(state.time + forward_seconds),
                    Some(after) => match after.backward_ends.get(next) {
                        Some(end) => end + problem.link_seconds,
                        None => {
                            let more = (next - after.backward_ends.len() + 1) as f64;
                            next_backward
                                + more * problem.chunks[rank + 1].backward_input_seconds
                                + problem.link_seconds
                        }
                    },
                };
                let begin = state.time.max(arrival);
                let free = problem.limits[rank].saturating_sub(state.held_bytes) as f64
                    + pending * cost.weight_gradient_bytes as f64;
                let fitting = if cost.activation_bytes == 0 {
                    forwards
                } else {
                    (free / cost.activation_bytes as f64).floor().min(forwards)
                };
                idle = (begin - state.time - fitting * forward_seconds - pending * backward_weight_seconds).max(0.0);
                let after = if rank + 1 < count { last_backward + problem.link_seconds } else { last_forward[rank] };
                last_backward = (state.time + computations).max(after + backward_input_seconds);
                next_backward = begin;
                bound = bound.max(last_backward + backward_weight_seconds);
            } else {
                last_backward = state.backward_ends.last().copied().unwrap_or(0.0);
                next_backward = last_backward;
            }
            bound = bound.max(state.time + idle + computations + weights * backward_weight_seconds);
        }
        bound
    }

    /// Actions done, by rank: states with the same ones have the same left to do and hold the same.
    fn done(&self) -> Vec<[u8; 4]> {
        let counts = |rank: &Rank| {
            let postponed = usize::from(rank.is_postponed[0]) + 2 * usize::from(rank.is_postponed[1]);
            [rank.forward_ends.len(), rank.backward_ends.len(), rank.weight_gradients, postponed].map(|n| n as u8)
        };
        self.ranks.iter().map(counts).collect()
    }

    /// All times on which the rest depends.
    fn times(&self) -> Vec<f64> {
        let mut times: Vec<f64> = self.ranks.iter().map(|rank| rank.time).collect();
        for pair in self.ranks.windows(2) {
            times.extend(&pair[0].forward_ends[pair[1].forward_ends.len()..]);
            times.extend(&pair[1].backward_ends[pair[0].backward_ends.len()..]);
        }
        // the last rank's own forwards are the inputs of its backwards
        if let Some(last) = self.ranks.last() {
            times.extend(&last.forward_ends[last.backward_ends.len()..]);
        }
        times
    }
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    best: Option<(f64, Vec<Vec<Action>>)>,
    states: u64,
    max_states: u64,
    /// Times of states that were searched, by the actions done.
    remembered: HashMap<Vec<[u8; 4]>, Vec<Vec<f64>>>,
    kept: usize,
}

impl Search<'_> {
    fn bound_to_beat(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(seconds, _)| seconds * (1.0 - TOLERANCE))
    }

    /// Notes a complete schedule if it is the best so far.
    fn complete(&mut self, state: &State) {
        if state.seconds() < self.bound_to_beat() {
            self.best = Some((state.seconds(), state.ranks.iter().map(|rank| rank.actions.clone()).collect()));
        }
    }

    /// The branches of a state, each with its lower bound, those that can beat the best schedule, the most promising first.
    fn children(&self, state: &State) -> Vec<(f64, State)> {
        let mut children: Vec<(f64, State)> = Vec::new();
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
    fn beam(&mut self, root: State) {
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
            let total = |state: &State| state.ranks.iter().map(|rank| rank.time).sum::<f64>();
            next.sort_by(|a, b| a.0.total_cmp(&b.0).then(total(&a.1).total_cmp(&total(&b.1))));
            next.truncate(BEAM_WIDTH);
            states = next;
        }
    }

    /// Searches everything below a state, depth first; returns a lower bound of what was left out.
    fn descend(&mut self, root: State) -> f64 {
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
    fn is_dominated(&mut self, state: &State) -> bool {
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
