//! Schedules: for each rank, the order of its forwards and backwards. Compute only; `lower` adds the communication.
//! A new schedule is a file here with one function.

mod gpipe;
mod one_f_one_b;

pub use gpipe::gpipe;
pub use one_f_one_b::one_f_one_b;

use crate::action::Action;
use crate::placement::Placement;
use crate::residency;

/// The order in which each rank computes. Holds F, B, I and W and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// torch's name, or where it came from.
    pub name: String,
    /// Which rank holds which chunk.
    pub placement: Placement,
    /// The number of microbatches of a step.
    pub microbatches: usize,
    /// One list a rank.
    pub ranks: Vec<Vec<Action>>,
}

impl Schedule {
    /// The most microbatches that each chunk holds activations of at once: what a partition needs to know about memory.
    pub fn in_flight(&self) -> Vec<usize> {
        let peak = |chunk| {
            let one = |of: usize| u64::from(of == chunk);
            self.placement.owner(chunk).and_then(|rank| self.ranks.get(rank)).map_or(0, |a| residency::peak(a, one))
        };
        (0..self.placement.chunks()).map(|chunk| peak(chunk) as usize).collect()
    }
}
