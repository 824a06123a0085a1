//! The operating system and the GPU driver.

mod allocator;
mod cuda;
mod memory;
mod signals;

pub(crate) use allocator::keep_freed_memory;
pub(crate) use cuda::cuda_devices;
pub(crate) use memory::peak_resident_bytes;
pub(crate) use signals::on_terminate;
