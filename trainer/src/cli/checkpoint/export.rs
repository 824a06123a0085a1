//! `stagecoach checkpoint export`

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use indicatif::HumanBytes;
use serde_json::json;
use stagecoach_checkpoint::paths::is_weights_file;
use stagecoach_checkpoint::{ExportFormat, ExportSummary, FileSystemVolume, export, open};

use super::super::output::{byte_progress_bar, print_json, print_line};
use super::target::CheckpointArgs;

/// Export a checkpoint's weights for other tools, verified by their hashes.
#[derive(Debug, Args)]
pub(super) struct ExportCommand {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The format.
    #[arg(long)]
    to: ExportFormatArg,
    /// The file or folder to create; it must not exist.
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormatArg {
    /// A Hugging Face model directory: configuration, tokenizer, weights.
    Hf,
    /// One safetensors file with all weights.
    SingleFile,
}

impl ExportCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (checkpoints, step) = self.checkpoint.open()?;
        let output = std::path::absolute(&self.output)?;
        let name = output.file_name().and_then(|name| name.to_str());
        let name =
            name.with_context(|| format!("--output {} does not name a file or folder", self.output.display()))?;
        let parent = output.parent().unwrap_or(Path::new("/"));
        ensure!(parent.is_dir(), "--output {}: there is no folder {}", self.output.display(), parent.display());
        let reader = open(&checkpoints.volume, step)?;
        let weights = reader.manifest().tensors.iter().filter(|tensor| is_weights_file(&tensor.file));
        let bar = byte_progress_bar(weights.map(|tensor| tensor.bytes).sum());
        let format = match self.to {
            ExportFormatArg::Hf => ExportFormat::HuggingFace,
            ExportFormatArg::SingleFile => ExportFormat::SingleFile,
        };
        let result = export(&reader, format, &FileSystemVolume::new(parent), name, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let ExportSummary { files, tensors, bytes, .. } = result?;
        if json {
            return print_json(&json!({
                "step": step, "output": output, "files": files, "tensors": tensors, "bytes": bytes,
            }));
        }
        print_line(format!("step {step}: {tensors} tensors, {}, as {}", HumanBytes(bytes), self.output.display()));
        Ok(())
    }
}
