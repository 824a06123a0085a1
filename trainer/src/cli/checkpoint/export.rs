//! `stagecoach checkpoint export`

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use stagecoach_checkpoint::paths::is_weights_file;
use stagecoach_checkpoint::{ExportFormat, ExportSummary, FileSystemVolume, export, open};

use super::target::One;
use super::{say, say_json};
use crate::observe::bytes;

/// Write a checkpoint's weights for other tools, every byte proven.
#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    one: One,
    /// The form.
    #[arg(long)]
    to: To,
    /// Where; there must be nothing yet.
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    /// A Hugging Face model directory: configuration, tokenizer, weights.
    Hf,
    /// One safetensors file with all weights.
    SingleFile,
}

impl Export {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (job, step) = self.one.find()?;
        let output = std::path::absolute(&self.output)?;
        let name = output.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("--output {} names no file or folder", self.output.display()))?;
        let above = output.parent().unwrap_or(Path::new("/"));
        ensure!(above.is_dir(), "--output {}: there is no folder {}", self.output.display(), above.display());
        let loaded = open(&job.volume, step)?;
        let weights = loaded.manifest().tensors.iter().filter(|tensor| is_weights_file(&tensor.file));
        let bar = ProgressBar::new(weights.map(|tensor| tensor.bytes).sum()).with_style(
            ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let format = match self.to {
            To::Hf => ExportFormat::HuggingFace,
            To::SingleFile => ExportFormat::SingleFile,
        };
        let exported = export(&loaded, format, &FileSystemVolume::new(above), name, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let ExportSummary { files, tensors, bytes: size } = exported?;
        if json {
            return say_json(&json!({
                "step": step, "output": output, "files": files, "tensors": tensors, "bytes": size,
            }));
        }
        say(format!("step {step}: {tensors} tensors, {}, as {}", bytes(size), self.output.display()));
        Ok(())
    }
}
