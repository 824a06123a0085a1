//! The operating system.

mod allocator;
mod machine;
mod memory;
mod portable;
mod signals;
mod termination_mask;

pub(crate) use allocator::keep_freed_memory;
pub(crate) use machine::{hostname, is_in_cluster, processor_model};
pub(crate) use memory::{memory_bytes, peak_resident_bytes};
pub(crate) use portable::pin_instruction_set;
pub(crate) use signals::{hold_termination, on_terminate};
