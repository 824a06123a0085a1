//! `stagecoach checkpoint merge`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use stagecoach_checkpoint::{ExportFormat, open};
use stagecoach_engine::state_dict::MergedWeights;

use super::export::ExportOutput;
use super::target::CheckpointArgs;

/// Write the whole model of a checkpoint that has only the trained weights of its job.
///
/// A job with adapters (`training.lora`) or frozen weights (`training.freeze`) saves only the weights that it trains.
/// The command merges adapters into the weights from which the job started, and adds the frozen weights.
#[derive(Debug, Args)]
pub(super) struct MergeCommand {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The model directory from which the job started; by default the directory that the job names, in a folder above
    /// the checkpoint.
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    #[command(flatten)]
    output: ExportOutput,
}

impl MergeCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (checkpoints, step) = self.checkpoint.open()?;
        let reader = open(&checkpoints.volume, step)?;
        let merged = MergedWeights::open(reader, &checkpoints.path(step), self.base.as_deref())?;
        let merged = merged.with_context(|| {
            format!(
                "the checkpoint of step {step} in {} has all weights of its model: `stagecoach checkpoint export` writes them",
                checkpoints.folder.display()
            )
        })?;
        self.output.write(merged.checkpoint(), &merged, ExportFormat::HuggingFace, json)
    }
}
