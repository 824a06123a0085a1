//! Checkpoints as bytes: committed by one rename, guarded by a fence, proven by hashes, found again after any crash.
//! All through one [`Volume`] trait, so that tests can fail or kill every single operation. Tensors come and go as named
//! views.
#![forbid(unsafe_code)]

mod aside;
mod contents;
mod direct;
mod error;
mod export;
mod fence;
mod files;
mod float;
mod header;
mod hugging_face;
mod identity;
mod import;
pub mod layout;
mod lazy;
mod load;
mod manifest;
mod place;
mod prune;
mod real_volume;
mod save;
mod shard;
pub mod testing;
mod verify;
mod volume;

pub use aside::set_aside;
pub use contents::{Contents, is_used};
pub use error::{CheckpointError, Damage, Warning};
pub use export::{Exported, Form, export};
pub use fence::{Fence, sweep};
pub use files::{partial_of, write_atomically};
pub use float::{is_float, to_f32};
pub use hugging_face::{ModelFiles, TensorType};
pub use identity::{Difference, differences};
pub use import::import;
pub use load::{Depth, Found, Listing, Loaded, list, manifest, newest, open};
pub use manifest::{About, FORMAT_VERSION, FileEntry, Manifest, TensorEntry};
pub use place::Place;
pub use prune::{Keep, doomed, prune};
pub use real_volume::RealVolume;
pub use safetensors::tensor::TensorView;
pub use safetensors::{Dtype, View};
pub use save::{Save, StageFiles};
pub use shard::{ShardFile, write_shard};
pub use verify::{Verifying, verify};
pub use volume::{Entry, FileReader, FileWriter, Volume};
