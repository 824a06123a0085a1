//! Searches for the schedule with the shortest step for given costs and memory, by branch and bound.
//!
//! Each rank holds one chunk. All microbatches cost the same. Some optimal schedule therefore runs the forward passes
//! (F) of each rank in microbatch order, and likewise both parts of its backward passes: the gradients of the inputs
//! (I) and the gradients of the weights (W). The search decides how each rank interleaves F, I and W. It branches as
//! Giffler and Thompson (1960) do. Let A be the possible next action that ends first, over all ranks. The search
//! branches only on the actions of A's rank that can begin before A ends. Any other action of this rank can run after A
//! without delay. If A takes memory that other actions need first, the best schedule may run A later. A further branch
//! therefore excludes A from being next.

mod search;
mod state;

use crate::action::Action;
use crate::activation_memory;
use crate::costs::{ChunkCosts, Costs};
use crate::lower::lower;
use crate::placement::Placement;
use crate::schedule::{Schedule, gpipe, interleaved_zero_bubble, one_f_one_b};
use crate::simulate::simulate;
use search::Search;
use state::SearchProblem;

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OptimalSchedule {
    /// The best schedule that the search found.
    pub schedule: Schedule,
    /// The seconds until the schedule's last computation ends, if every message takes exactly the link's time.
    pub seconds: f64,
    /// A lower bound of the seconds of every schedule that fits into the memory. The bound equals `seconds` if the
    /// search finished.
    pub lower_bound: f64,
    /// The number of visited states.
    pub states: u64,
}

impl OptimalSchedule {
    /// Whether the search proved that no schedule within the memory is faster.
    pub fn is_proven(&self) -> bool {
        self.lower_bound >= self.seconds * (1.0 - TOLERANCE)
    }
}

/// The relative difference below which two times count as equal.
const TOLERANCE: f64 = 1e-9;
/// Searches for the shortest schedule of `microbatches` microbatches over `costs.chunks.len()` ranks with one chunk
/// each. Each rank holds at most `limits[rank]` bytes of activations and inputs of weight gradients. If the search
/// stops after `max_states` states, its lower bound is weaker. Returns `None` if the search found no schedule that
/// fits.
pub fn optimal_schedule(
    costs: &Costs,
    microbatches: usize,
    limits: &[u64],
    max_states: u64,
) -> Option<OptimalSchedule> {
    let problem = SearchProblem { chunks: &costs.chunks, link_seconds: costs.link_seconds, microbatches, limits };
    let found = Search::new(&problem, best_known(costs, microbatches, limits), max_states).run();
    let (seconds, ranks) = found.best?;
    let schedule = Schedule {
        name: "Optimal".to_owned(),
        placement: Placement::linear(costs.chunks.len()),
        microbatches,
        ranks: ranks.into_iter().map(merge_backwards).collect(),
    };
    Some(OptimalSchedule { schedule, seconds, lower_bound: found.open_bound.min(seconds), states: found.states })
}

/// The seconds of a schedule, and the actions of each rank.
type Found = (f64, Vec<Vec<Action>>);

/// Returns the best of 1F1B, GPipe and ZB-H1 with its seconds, or `None` if none of them fits.
fn best_known(costs: &Costs, microbatches: usize, limits: &[u64]) -> Option<Found> {
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

/// On the first rank, merges each I and the directly following W of the same item into a B. The merge delays no other
/// rank, because no rank waits for the result of the first rank's I.
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
