//! The link from a checkpoint to the one before it. Like a commit of a version control system, a checkpoint names its
//! predecessor by hash, with the environment, the attempt and the tensors in it. The times of saves and the number of
//! stages change these links, so the receipt does not contain them.

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::Manifest;

use stagecoach_engine::StageError;

/// A checkpoint, named by its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointLink {
    /// The step of the checkpoint.
    pub step: u64,
    /// BLAKE3 of the manifest, in hex.
    pub manifest: String,
}

impl CheckpointLink {
    /// The link to a checkpoint.
    ///
    /// # Errors
    /// None in practice: every manifest that was read or written has a JSON form.
    pub fn to(manifest: &Manifest) -> Result<CheckpointLink, StageError> {
        let bytes =
            manifest.to_bytes().map_err(|e| StageError::invalid(format!("a manifest can't be written: {e}")))?;
        Ok(CheckpointLink { step: manifest.step, manifest: blake3::hash(&bytes).to_hex().to_string() })
    }

    /// The link in a checkpoint; `None` in the first one, and in checkpoints of versions without links.
    pub fn of(manifest: &Manifest) -> Option<CheckpointLink> {
        serde_json::from_value(manifest.metadata.progress.get("previous")?.clone()).ok()
    }
}
