//! Checkpoints during training: the schedule of saves, a save by all stages, and the checkpoint thread.

pub(in crate::train) mod drain;
pub(in crate::train) mod finish;
pub(in crate::train) mod memory;

mod schedule;
mod small_files;
mod thread;
mod writer;

pub(in crate::train) use schedule::SaveSchedule;
pub(in crate::train) use writer::CheckpointWriter;
