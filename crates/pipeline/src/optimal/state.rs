//! Defines the states of a search: the executed actions of the ranks, the possible next actions, and a lower bound of
//! the remaining time.

use crate::action::Action;
use crate::costs::ChunkCosts;
use crate::work_item::WorkItem;

/// The problem for which a schedule is searched. Rank `i` runs chunk `i` and may hold `limits[i]` bytes.
pub(super) struct SearchProblem<'a> {
    pub(super) chunks: &'a [ChunkCosts],
    pub(super) link_seconds: f64,
    pub(super) microbatches: usize,
    pub(super) limits: &'a [u64],
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    /// I directly followed by W. The rank does not keep the inputs of the weight gradients.
    FullBackward,
    BackwardInput,
    BackwardWeight,
}

impl Kind {
    /// Returns the index of this kind in [`Rank::is_postponed`], or `None` for a kind that never takes memory.
    fn postponed_index(self) -> Option<usize> {
        match self {
            Kind::Forward => Some(0),
            Kind::BackwardInput => Some(1),
            Kind::FullBackward | Kind::BackwardWeight => None,
        }
    }
}

impl SearchProblem<'_> {
    /// Whether the action takes memory on a rank that can't hold all microbatches at once.
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

/// The progress of one rank.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    /// The time at which the rank's last action ended.
    pub(super) time: f64,
    held_bytes: u64,
    forward_ends: Vec<f64>,
    backward_ends: Vec<f64>,
    weight_gradients: usize,
    pub(super) actions: Vec<Action>,
    /// For each [`Kind::postponed_index`], whether an action of that kind must not come next.
    is_postponed: [bool; 2],
}

/// The progress of all ranks.
#[derive(Clone, Debug)]
pub(super) struct PartialSchedule {
    pub(super) ranks: Vec<Rank>,
}

/// A possible next action.
#[derive(Copy, Clone, Debug)]
struct Candidate {
    rank: usize,
    kind: Kind,
    start: f64,
    end: f64,
}

impl PartialSchedule {
    pub(super) fn new(problem: &SearchProblem) -> PartialSchedule {
        let rank = Rank {
            time: 0.0,
            held_bytes: 0,
            forward_ends: Vec::new(),
            backward_ends: Vec::new(),
            weight_gradients: 0,
            actions: Vec::new(),
            is_postponed: [false; 2],
        };
        PartialSchedule { ranks: vec![rank; problem.chunks.len()] }
    }

    /// Returns the time at which the rank's next forward has its input. Returns `None` if all forwards have run, or if
    /// the input is not computed yet.
    fn forward_ready(&self, problem: &SearchProblem, rank: usize) -> Option<f64> {
        let next = self.ranks[rank].forward_ends.len();
        match rank.checked_sub(1) {
            _ if next == problem.microbatches => None,
            None => Some(0.0),
            Some(before) => Some(self.ranks[before].forward_ends.get(next)? + problem.link_seconds),
        }
    }

    /// Returns the time at which the rank's next backward has its input. Returns `None` if all backwards have run, or
    /// if the input is not computed yet.
    fn backward_ready(&self, problem: &SearchProblem, rank: usize) -> Option<f64> {
        let next = self.ranks[rank].backward_ends.len();
        let own = *self.ranks[rank].forward_ends.get(next)?;
        match self.ranks.get(rank + 1) {
            None => Some(own),
            Some(after) => Some(after.backward_ends.get(next)? + problem.link_seconds),
        }
    }

    /// Returns the possible next actions of the rank.
    fn candidates(&self, problem: &SearchProblem, rank: usize) -> Vec<Candidate> {
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
        // B is a candidate only if the inputs of W take more memory than the activations; otherwise, separate I and W
        // have the same effect and are more flexible
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
        [input, forward, full, weight].into_iter().flatten().filter(may_come).collect()
    }

    /// Returns the successor states. At least one of them leads to the best continuation.
    pub(super) fn branches(&self, problem: &SearchProblem) -> Vec<PartialSchedule> {
        let all = (0..self.ranks.len()).flat_map(|rank| self.candidates(problem, rank));
        let Some(first) = all.min_by(|a, b| a.end.total_cmp(&b.end)) else { return Vec::new() };
        let mut branches = Vec::new();
        for candidate in self.candidates(problem, first.rank).into_iter().filter(|c| c.start < first.end) {
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

    fn apply(&mut self, problem: &SearchProblem, candidate: Candidate) {
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

    pub(super) fn is_done(&self, problem: &SearchProblem) -> bool {
        self.ranks.iter().all(|rank| rank.weight_gradients == problem.microbatches)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.time).fold(0.0, f64::max)
    }

    /// Returns the earliest time at which each rank's last forward can end.
    fn last_forward_bounds(&self, problem: &SearchProblem) -> Vec<f64> {
        let mut bounds: Vec<f64> = Vec::with_capacity(self.ranks.len());
        for (state, cost) in self.ranks.iter().zip(problem.chunks) {
            let forwards = (problem.microbatches - state.forward_ends.len()) as f64;
            bounds.push(if forwards == 0.0 {
                state.forward_ends.last().copied().unwrap_or(0.0)
            } else {
                let seconds = cost.forward_seconds;
                let own = state.time + forwards * seconds;
                let before = bounds.last().map_or(0.0, |before| before + problem.link_seconds);
                own.max(before + seconds)
            });
        }
        bounds
    }

    /// Returns a lower bound of the end time of all complete schedules that continue this state.
    pub(super) fn lower_bound(&self, problem: &SearchProblem) -> f64 {
        let count = self.ranks.len();
        let left = |done: usize| (problem.microbatches - done) as f64;
        let last_forward = self.last_forward_bounds(problem);
        let mut bound = 0.0f64;
        // for the rank of the previous iteration (`rank + 1`): the earliest times at which its last I can end, and at
        // which its next I can begin
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

    /// Returns the numbers of executed actions and the postponed kinds of each rank. States with equal values have the
    /// same remaining actions and hold the same memory.
    pub(super) fn done(&self) -> Vec<[u32; 4]> {
        let counts = |rank: &Rank| {
            let postponed = usize::from(rank.is_postponed[0]) + 2 * usize::from(rank.is_postponed[1]);
            [rank.forward_ends.len(), rank.backward_ends.len(), rank.weight_gradients, postponed].map(|n| n as u32)
        };
        self.ranks.iter().map(counts).collect()
    }

    /// Returns all times on which the remaining schedule depends.
    pub(super) fn times(&self) -> Vec<f64> {
        let mut times: Vec<f64> = self.ranks.iter().map(|rank| rank.time).collect();
        for pair in self.ranks.windows(2) {
            times.extend(&pair[0].forward_ends[pair[1].forward_ends.len()..]);
            times.extend(&pair[1].backward_ends[pair[0].backward_ends.len()..]);
        }
        // the last rank's forwards compute the inputs of its backwards
        if let Some(last) = self.ranks.last() {
            times.extend(&last.forward_ends[last.backward_ends.len()..]);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;

    #[test]
    fn counts_above_255_are_different() {
        let Costs { chunks, link_seconds, .. } = Costs::uniform(1);
        let problem = SearchProblem { chunks: &chunks, link_seconds, microbatches: 256, limits: &[256] };
        let start = PartialSchedule::new(&problem);
        let mut state = start.clone();
        for _ in 0..256 {
            let forward = state.candidates(&problem, 0).into_iter().find(|next| next.kind == Kind::Forward).unwrap();
            state.apply(&problem, forward);
        }
        assert_ne!(state.done(), start.done());
    }
}
