#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod contents;
mod damaged;
mod error;
mod fence;
mod fence_owner;
mod hugging_face;
mod identity;
mod load;
mod location;
mod manifest;
pub mod paths;
mod prune;
mod quarantine;
mod reader;
mod safetensors;
mod save;
mod verify;
mod volume;

pub use ::safetensors::tensor::TensorView;
pub use ::safetensors::{Dtype, View};
pub use contents::{VolumeContents, is_used};
pub use error::{CheckpointError, Damage, Warning};
pub use fence::{Fence, last_published, newest_fence, newest_owner, newest_published, remove_stale_fences};
pub use fence_owner::FenceOwner;
pub use hugging_face::{
    ExportDtype, ExportFormat, ExportOptions, ExportSummary, ExportedWeights, ModelFiles, TensorType, export,
    export_weights, import, refuse_adapter,
};
pub use identity::{IdentityDifference, differences};
pub use load::{Listing, NewestCheckpoint, VerifyLevel, list, open, open_newest, open_tensors};
pub use location::CheckpointLocation;
pub use manifest::{CheckpointMetadata, FORMAT_VERSION, FileEntry, Manifest, ManifestError, TensorEntry};
pub use prune::{RetentionPolicy, prune, to_prune};
pub use quarantine::quarantine;
pub use reader::{CheckpointReader, read_manifest};
pub use safetensors::{CancelCheck, WrittenShard, is_float, write_shard};
pub use save::{PendingCheckpoint, StageFiles};
pub use verify::{VerifyEvent, verify};
pub use volume::{DirEntry, FileReader, FileSystemVolume, FileWriter, Volume};
