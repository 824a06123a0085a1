//! Provides the services of the operating system that the processes of stages use: signals, the allocator, memory
//! sizes, names of the machine, the choice of the CPU instructions, and the end of the process.

mod allocator;
mod exit;
mod machine;
mod memory;
mod portable;
mod signals;
mod termination_mask;

pub use allocator::keep_freed_memory;
pub use exit::exit_now;
pub use machine::{hostname, is_in_cluster, processor_model};
pub use memory::{memory_bytes, peak_resident_bytes};
pub use portable::{PortableError, pin_instruction_set};
pub use signals::{hold_termination, on_terminate};
