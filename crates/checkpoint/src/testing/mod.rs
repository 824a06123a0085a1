//! For tests, here and in the trainer: a volume in memory that can lose power, and one that fails or crashes at a
//! chosen call.

mod faults;
mod memory;

pub use faults::{Call, Crashed, EEXIST, EIO, ENOENT, ENOSPC, ENOTEMPTY, Fault, FaultyVolume};
pub use memory::{MemoryVolume, PowerLoss};
