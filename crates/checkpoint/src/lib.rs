//! Weights as files: a Hugging Face model directory, one shard a stage, written aside and published by one rename.
//! Bytes only: tensors come and go as named views.
#![forbid(unsafe_code)]

mod error;
mod files;
mod model_folder;

pub use error::CheckpointError;
pub use files::write_atomically;
pub use model_folder::{ModelFolder, Shard, TensorView, read_shards};
