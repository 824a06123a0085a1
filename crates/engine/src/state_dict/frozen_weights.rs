//! The frozen weights of a job, which checkpoints record and do not have.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stagecoach_checkpoint::CheckpointError;

use super::TensorHash;

/// The frozen weights of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenWeights {
    /// The hash of their values in fp32, in hex.
    pub hash: String,
    /// The model directory that has them, relative to the volume's root.
    pub path: PathBuf,
}

impl FrozenWeights {
    /// The frozen weights that the progress in a checkpoint's manifest records; `None` if the checkpoint has all
    /// weights.
    pub fn of_progress(progress: &Value) -> Option<FrozenWeights> {
        FrozenWeights::deserialize(&progress["frozenWeights"]).ok()
    }

    /// Checks that weights with these hashes, which were read from `folder`, are these weights.
    ///
    /// # Errors
    /// Names both hashes, and the `remedy`.
    pub fn check(&self, hashes: Vec<TensorHash>, folder: &Path, remedy: &str) -> Result<(), CheckpointError> {
        let hash = TensorHash::combine(hashes);
        if hash == self.hash {
            return Ok(());
        }
        let problem = format!(
            "has other weights than those with which the job began: their hash is {hash} and was {}; {remedy}",
            self.hash
        );
        Err(CheckpointError::Content { path: folder.to_owned(), problem })
    }
}
