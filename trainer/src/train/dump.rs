//! Writes the tensors that a stage took of a step.

use stagecoach_api::contract::FailureKind;
use tch::Tensor;

use crate::execute::{DumpConfig, Stage};
use crate::fatal::Fatal;

/// Writes them as a file of this stage, if there are any.
pub(super) fn write_dump(config: &DumpConfig, stage: &Stage) -> Result<(), Fatal> {
    let tensors = stage.take_dump();
    if tensors.is_empty() {
        return Ok(());
    }
    let path = config.folder.join(format!("stage-{}.safetensors", stage.rank));
    Tensor::write_safetensors(&tensors, &path)
        .map_err(|e| Fatal::new(FailureKind::Storage, format!("could not write {}: {e}", path.display())))
}
