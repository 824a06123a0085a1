//! The operating system and the GPU driver.

mod cuda;
mod signals;

pub(crate) use cuda::cuda_devices;
pub(crate) use signals::on_terminate;
