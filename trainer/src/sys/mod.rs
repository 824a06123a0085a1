//! The operating system and the GPU driver: what needs `unsafe`, kept small.

mod cuda;
mod signals;

pub(crate) use cuda::cuda_devices;
pub(crate) use signals::on_terminate;
