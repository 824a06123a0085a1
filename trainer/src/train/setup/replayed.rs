//! The options of a replay for the stages.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::FailureKind;
use stagecoach_engine::execute::{DumpConfig, Stage};
use tch::Tensor;

use crate::stage_error::StageError;

/// Options of a stage in a replay, besides a pod's contract.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReplayOptions {
    /// Tensors to write.
    pub(crate) dump: Option<DumpConfig>,
    /// Documents, by index, whose tokens are no targets in training.
    pub(crate) without: BTreeSet<u64>,
}

/// Writes the dumped tensors of a step as a file of this stage, if there are any.
pub(in crate::train) fn write_dump(config: &DumpConfig, stage: &Stage, step: u64) -> Result<(), StageError> {
    let tensors = stage.take_dump();
    if tensors.is_empty() {
        return Ok(());
    }
    let path = config.folder.join(format!("step-{step}.stage-{}.safetensors", stage.index));
    Tensor::write_safetensors(&tensors, &path)
        .map_err(|e| StageError::new(FailureKind::Storage, format!("could not write {}: {e}", path.display())))
}
