//! Crash-safe checkpoints: committed by one rename, guarded by a fencing token, verified by hashes. All I/O goes
//! through the [`Volume`] trait, so that tests can fail or crash at every operation. Tensors are passed as named views.
#![forbid(unsafe_code)]

mod contents;
mod direct_io;
mod error;
mod export;
mod fence;
mod file_system_volume;
mod files;
mod float;
mod header;
mod hugging_face;
mod identity;
mod import;
mod lazy;
mod load;
mod location;
mod manifest;
pub mod paths;
mod prune;
mod save;
mod set_aside;
mod shard;
pub mod testing;
mod verify;
mod volume;

pub use contents::{VolumeContents, is_used};
pub use error::{CheckpointError, Damage, Warning};
pub use export::{ExportFormat, ExportSummary, export};
pub use fence::{Fence, remove_stale_fences};
pub use file_system_volume::FileSystemVolume;
pub use files::{partial_file_target, write_atomically};
pub use float::{is_float, to_f32};
pub use hugging_face::{ModelFiles, TensorType};
pub use identity::{Difference, differences};
pub use import::import;
pub use load::{CheckpointReader, Listing, NewestCheckpoint, VerifyLevel, list, open, open_newest, read_manifest};
pub use location::CheckpointLocation;
pub use manifest::{CheckpointMetadata, FORMAT_VERSION, FileEntry, Manifest, TensorEntry};
pub use prune::{RetentionPolicy, prune, to_prune};
pub use safetensors::tensor::TensorView;
pub use safetensors::{Dtype, View};
pub use save::{PendingCheckpoint, StageFiles};
pub use set_aside::set_aside;
pub use shard::{WrittenShard, write_shard};
pub use verify::{VerifyEvent, verify};
pub use volume::{DirEntry, FileReader, FileWriter, Volume};
