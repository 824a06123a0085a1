//! Saving checkpoints during training: when to save, how all stages save together, and the background thread.

mod schedule;
mod thread;
mod writer;

pub(super) use schedule::SaveSchedule;
pub(super) use writer::CheckpointWriter;
