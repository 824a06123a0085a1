//! Schedules: for each rank, the order of its forwards and backwards. Compute only; `lower` adds the communication.
//! A new schedule is a new file here with one function, and an entry in `SCHEDULES`.

mod gpipe;
mod interleaved_one_f_one_b;
mod interleaved_zero_bubble;
mod one_f_one_b;
mod rounds;
mod schedule_type;
mod zbv_zero_bubble;

pub use gpipe::gpipe;
pub use interleaved_one_f_one_b::{INTERLEAVED_ONE_F_ONE_B, interleaved_one_f_one_b};
pub use interleaved_zero_bubble::interleaved_zero_bubble;
pub use one_f_one_b::{ONE_F_ONE_B, one_f_one_b};
pub use schedule_type::{ChunkRule, ScheduleType};
pub use zbv_zero_bubble::zbv_zero_bubble;

use crate::action::Action;
use crate::activation_memory::{self, Held};
use crate::placement::Placement;

/// Every schedule that a job can name, in the order in which lists show them. If two schedules with the same `chunks`
/// take the same time, the choice of the fastest schedule prefers the later one.
pub const SCHEDULES: &[ScheduleType] = &[
    gpipe::GPIPE,
    ONE_F_ONE_B,
    INTERLEAVED_ONE_F_ONE_B,
    interleaved_zero_bubble::INTERLEAVED_ZERO_BUBBLE,
    zbv_zero_bubble::ZBV_ZERO_BUBBLE,
];

/// The order in which each rank computes. Holds only F, B, I and W.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// torch's name, or its origin.
    pub name: String,
    /// The placement of chunks on ranks.
    pub placement: Placement,
    /// The number of microbatches of a step.
    pub microbatches: usize,
    /// One list per rank.
    pub ranks: Vec<Vec<Action>>,
}

impl Schedule {
    /// For each rank, the peak number of work items between their F and their B or W.
    pub fn in_flight(&self) -> Vec<usize> {
        self.ranks.iter().map(|actions| activation_memory::peak(actions, |_| Held::ONE).total() as usize).collect()
    }
}
