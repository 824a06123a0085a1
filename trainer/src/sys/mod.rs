//! The operating system and the GPU driver: what needs `unsafe`, kept small.

mod cuda;
mod signals;

pub use cuda::cuda_devices;
pub use signals::on_terminate;
