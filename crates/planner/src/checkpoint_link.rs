//! The link from a checkpoint to the checkpoint before it. Like a commit of a version control system, a checkpoint
//! names its predecessor by hash. The hash covers the predecessor's whole manifest, including environment, attempt and
//! tensors. The links depend on the times of the saves and on the number of stages. The receipt (the hash chain over
//! the steps of a run) therefore does not contain them, so that equal runs have equal receipts.

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::Manifest;

use stagecoach_engine::StageError;

/// A reference to a checkpoint by the hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointLink {
    /// The step of the checkpoint.
    pub step: u64,
    /// BLAKE3 of the checkpoint's manifest (the JSON file that describes the checkpoint), in hex.
    pub manifest: String,
}

impl CheckpointLink {
    /// Returns the link to the checkpoint of `manifest`.
    ///
    /// # Errors
    /// Returns an error if the manifest can't be written as JSON, which does not happen in practice.
    pub fn to(manifest: &Manifest) -> Result<CheckpointLink, StageError> {
        let bytes =
            manifest.to_bytes().map_err(|e| StageError::invalid(format!("a manifest can't be written: {e}")))?;
        Ok(CheckpointLink { step: manifest.step, manifest: blake3::hash(&bytes).to_hex().to_string() })
    }

    /// Returns the link in the checkpoint of `manifest`. Returns `None` for a job's first checkpoint, and for a
    /// checkpoint that a version of Stagecoach without links wrote.
    pub fn of(manifest: &Manifest) -> Option<CheckpointLink> {
        serde_json::from_value(manifest.metadata.progress.get("previous")?.clone()).ok()
    }
}
