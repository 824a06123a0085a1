//! Defines schedules: the order of each rank's forwards and backwards. A schedule has only computations, and `lower`
//! adds the communication. A new schedule needs a new file here with one function, and an entry in `SCHEDULES`.

mod gpipe;
mod interleaved_one_f_one_b;
mod interleaved_zero_bubble;
mod one_f_one_b;
mod rounds;
mod zbv_zero_bubble;

pub use gpipe::gpipe;
pub use interleaved_one_f_one_b::{INTERLEAVED_ONE_F_ONE_B, interleaved_one_f_one_b};
pub use interleaved_zero_bubble::interleaved_zero_bubble;
pub use one_f_one_b::{ONE_F_ONE_B, one_f_one_b};
pub use zbv_zero_bubble::zbv_zero_bubble;

use crate::action::Action;
use crate::activation_memory;
use crate::placement::Placement;

/// Every schedule that a job can name, in the order in which lists show them. If two schedules with the same `chunks`
/// take the same time, the choice of the fastest schedule prefers the schedule that comes later in this list.
pub const SCHEDULES: &[ScheduleType] = &[
    gpipe::GPIPE,
    ONE_F_ONE_B,
    INTERLEAVED_ONE_F_ONE_B,
    interleaved_zero_bubble::INTERLEAVED_ZERO_BUBBLE,
    zbv_zero_bubble::ZBV_ZERO_BUBBLE,
];

/// A schedule for any number of ranks and microbatches.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleType {
    /// The name of the schedule in torch. A job chooses the schedule by this name.
    pub name: &'static str,
    /// The description of the schedule in one sentence, for the author of a job.
    pub description: &'static str,
    /// The rule for the number of chunks of a rank.
    pub chunks: ChunkRule,
    /// The function that builds the schedule for a number of ranks, of chunks per rank, and of microbatches.
    build: fn(usize, usize, usize) -> Schedule,
}

/// The number of chunks of a rank in a schedule. The variants are ordered from the simplest rule to the most complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkRule {
    /// One chunk.
    One,
    /// One chunk or more.
    Any,
    /// Two chunks.
    Two,
}

impl ScheduleType {
    /// Builds the schedule for at least one rank, chunk and microbatch. `chunks_per_rank` has no effect if the schedule
    /// type has a fixed number of chunks per rank.
    pub fn schedule(&self, ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Schedule {
        (self.build)(ranks, chunks_per_rank, microbatches)
    }
}

impl PartialEq for ScheduleType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl ChunkRule {
    /// Returns the number of chunks, or `None` if several numbers are possible.
    pub const fn fixed(self) -> Option<usize> {
        match self {
            Self::One => Some(1),
            Self::Two => Some(2),
            Self::Any => None,
        }
    }

    /// Whether a rank may have `chunks` chunks.
    pub fn allows(self, chunks: usize) -> bool {
        self.fixed().map_or(chunks >= 1, |fixed| chunks == fixed)
    }
}

/// The order in which each rank computes. A schedule holds only computations: forward passes (F), full backward passes
/// (B), and the two parts of split backward passes (I and W).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The name of the schedule in torch, or the origin of the schedule, such as `CSV`.
    pub name: String,
    /// The placement of chunks on ranks.
    pub placement: Placement,
    /// The number of microbatches of a step.
    pub microbatches: usize,
    /// The computations of each rank, in order.
    pub ranks: Vec<Vec<Action>>,
}

impl Schedule {
    /// Returns, for each rank, the peak number of work items in flight: items whose F has run and whose B or W has not.
    pub fn in_flight(&self) -> Vec<usize> {
        activation_memory::in_flight(&self.ranks)
    }
}
