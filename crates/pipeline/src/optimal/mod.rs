//! The schedule with the shortest step for given costs and memory, by branch and bound.
//!
//! Each rank holds one chunk. All microbatches cost the same, so some optimal schedule runs the forwards of each rank
//! in microbatch order, and likewise its I and its W. The search decides how each rank interleaves them. Branches are
//! those of Giffler and Thompson (1960): of all possible next actions, take the one that ends first. On its rank, only
//! actions that can begin before that end need to be tried, because any other action could follow it without delay.
//! Where memory is short, an action that takes memory can't always precede others, so a further branch does not run it
//! next.

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
    /// The best schedule found.
    pub schedule: Schedule,
    /// The seconds until the schedule's last computation ends, if every message takes exactly the link's time.
    pub seconds: f64,
    /// A lower bound of the seconds of every schedule; equal to `seconds` if the search finished.
    pub lower_bound: f64,
    /// The number of visited states.
    pub states: u64,
}

impl OptimalSchedule {
    /// Whether no schedule within the memory is faster.
    pub fn is_proven(&self) -> bool {
        self.lower_bound >= self.seconds * (1.0 - TOLERANCE)
    }
}

/// The relative difference below which two times count as equal.
const TOLERANCE: f64 = 1e-9;
/// Searches for the shortest schedule of `microbatches` microbatches over `costs.chunks.len()` ranks with one chunk
/// each. Each rank holds at most `limits[rank]` bytes of activations and inputs of weight gradients. The search stops
/// after `max_states` states; its lower bound is then weaker. `None` if no schedule that fits was found.
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

/// Seconds of a schedule, and each rank's actions.
type Found = (f64, Vec<Vec<Action>>);

/// The best of the named schedules, with its seconds.
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

/// Merges an I directly followed by the W of the same item into B on the first rank, where no rank waits for the result
/// of I.
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
