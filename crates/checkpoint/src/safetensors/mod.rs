//! Safetensors files: written one tensor at a time with hashes, read by offset.

mod float;
mod header;
mod lazy;
mod write;

pub use float::{is_float, to_f32};
pub(crate) use header::read_header;
pub(crate) use lazy::{LazyTensor, TensorReader};
pub(crate) use write::write_file;
pub use write::{WrittenShard, write_shard};
