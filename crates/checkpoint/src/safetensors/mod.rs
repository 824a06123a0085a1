//! Safetensors files: written with hashes, one tensor at a time, and read by offset.

mod float;
mod header;
mod lazy;
mod write;

pub use float::is_float;
pub(crate) use float::{f32_to_bf16, to_f32};
pub(crate) use header::read_header;
pub(crate) use lazy::{LazyTensor, TensorReader};
pub use write::{CancelCheck, WrittenShard, write_shard};
pub(crate) use write::{write_file, write_shard_cancellable};
