//! Schedules: for each rank, the order of its forwards and backwards. Compute only; `lower` adds the communication.
//! A new schedule is a new file here with one function.

mod gpipe;
mod one_f_one_b;

pub use gpipe::gpipe;
pub use one_f_one_b::one_f_one_b;

use crate::action::Action;
use crate::activation_memory;
use crate::placement::Placement;

/// The order in which each rank computes. Holds only F, B, I and W.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// torch's name, or its origin.
    pub name: String,
    /// Which rank holds which chunk.
    pub placement: Placement,
    /// The number of microbatches of a step.
    pub microbatches: usize,
    /// One list per rank.
    pub ranks: Vec<Vec<Action>>,
}

impl Schedule {
    /// For each chunk, the peak number of microbatches whose activations it holds; the partition's memory limit uses
    /// it.
    pub fn in_flight(&self) -> Vec<usize> {
        let peak = |chunk| {
            let one = |of: usize| u64::from(of == chunk);
            self.placement
                .get_rank(chunk)
                .and_then(|rank| self.ranks.get(rank))
                .map_or(0, |a| activation_memory::peak_activations(a, one))
        };
        (0..self.placement.chunks()).map(|chunk| peak(chunk) as usize).collect()
    }
}
