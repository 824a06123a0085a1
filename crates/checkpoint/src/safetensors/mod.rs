//! Writes safetensors files with hashes, one tensor at a time, and reads tensors by offset.

mod float;
mod read;
mod write;

pub use float::is_float;
pub(crate) use float::{f32_to_bf16, to_f32};
pub(crate) use read::{LazyTensor, TensorReader, read_header};
pub use write::{CancelCheck, WrittenShard, write_shard};
pub(crate) use write::{write_file, write_shard_cancellable};
