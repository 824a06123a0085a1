//! Duration of a step and memory of each rank, from per-action costs.

use crate::activation_memory;
use crate::costs::Costs;
use crate::discrete_event;
use crate::program::Programs;
use crate::timeline::Timeline;

/// Discrete-event simulation of one step of the programs among equal steps: its GATHERs are those of the previous step,
/// which are under way when the step begins. Expects programs that [`verify`](crate::verify()) accepts; other programs
/// are simulated until no rank can proceed.
pub fn simulate(programs: &Programs, costs: &Costs) -> Timeline {
    let peak_bytes = activation_memory::peak_bytes(&programs.placement, &programs.ranks, costs);
    Timeline::new(discrete_event::run(programs, costs).spans, peak_bytes)
}
