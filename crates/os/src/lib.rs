//! Provides the services of the operating system that the processes of stages use: signals, the allocator, memory
//! sizes, names of the machine, and the choice of the CPU instructions.

mod allocator;
mod machine;
mod memory;
mod portable;
mod signals;
mod termination_mask;

pub use allocator::keep_freed_memory;
pub use machine::{hostname, is_in_cluster, processor_model};
pub use memory::{memory_bytes, peak_resident_bytes};
pub use portable::{PortableError, pin_instruction_set};
pub use signals::{hold_termination, on_terminate};
