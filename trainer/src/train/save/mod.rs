//! Saving checkpoints during training: when to save, how all stages save together, and the background thread.

pub(in crate::train) mod drain;
pub(in crate::train) mod finish;
pub(in crate::train) mod memory;

mod schedule;
mod small_files;
mod thread;
mod writer;

pub(in crate::train) use schedule::SaveSchedule;
pub(in crate::train) use writer::CheckpointWriter;
