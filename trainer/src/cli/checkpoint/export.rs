//! `stagecoach checkpoint export`

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use indicatif::HumanBytes;
use serde_json::json;
use stagecoach_checkpoint::paths::ADAPTER_CONFIG_FILE;
use stagecoach_checkpoint::{
    CheckpointReader, ExportDtype, ExportFormat, ExportOptions, ExportSummary, ExportedWeights, FileSystemVolume,
    export_weights, open,
};
use stagecoach_engine::state_dict::FrozenWeights;

use super::super::output::{byte_progress_bar, print_json, print_line};
use super::target::CheckpointArgs;

/// Export a checkpoint's weights for other tools, verified by their hashes.
#[derive(Debug, Args)]
pub(super) struct ExportCommand {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The format to write.
    #[arg(long)]
    to: ExportFormatArg,
    #[command(flatten)]
    output: ExportOutput,
}

/// The output of an export.
#[derive(Debug, Args)]
pub(super) struct ExportOutput {
    /// The floating-point type of the weights. bf16 is rounded to the nearest value.
    #[arg(long, default_value = "fp32")]
    dtype: ExportTypeArg,
    /// The maximum size of a file of weights, such as 5GB or 500MB. A larger tensor gets a separate file.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    max_shard_size: u64,
    /// The file or folder to create; it must not exist.
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormatArg {
    /// A Hugging Face model directory: configuration, tokenizer, weights. Adapters become a PEFT adapter directory.
    Hf,
    /// One safetensors file with all weights.
    SingleFile,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportTypeArg {
    Fp32,
    Bf16,
}

impl ExportCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (checkpoints, step) = self.checkpoint.open()?;
        let format = match self.to {
            ExportFormatArg::Hf => ExportFormat::HuggingFace,
            ExportFormatArg::SingleFile => ExportFormat::SingleFile,
        };
        let reader = open(&checkpoints.volume, step)?;
        let is_part = FrozenWeights::of_progress(&reader.manifest().metadata.progress).is_some();
        let has_adapters = reader.read_small_file(ADAPTER_CONFIG_FILE)?.is_some();
        ensure!(
            !is_part || has_adapters || format == ExportFormat::SingleFile,
            "the checkpoint of step {step} in {} has only the trained weights of its job: `stagecoach checkpoint merge` writes the \
             whole model",
            checkpoints.folder.display()
        );
        self.output.write(&reader, &reader, format, json)
    }
}

impl ExportOutput {
    /// Writes `weights`. In the Hugging Face format, also writes the files of `checkpoint` that are not weights.
    pub(super) fn write(
        &self,
        checkpoint: &CheckpointReader,
        weights: &dyn ExportedWeights,
        format: ExportFormat,
        json: bool,
    ) -> anyhow::Result<()> {
        let output = std::path::absolute(&self.output)?;
        let name = output.file_name().and_then(|name| name.to_str());
        let name =
            name.with_context(|| format!("--output {} does not name a file or folder", self.output.display()))?;
        let parent = output.parent().unwrap_or(Path::new("/"));
        ensure!(parent.is_dir(), "--output {}: there is no folder {}", self.output.display(), parent.display());
        let values = weights.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum::<u64>();
        let bar = byte_progress_bar(4 * values);
        let dtype = match self.dtype {
            ExportTypeArg::Fp32 => ExportDtype::Float32,
            ExportTypeArg::Bf16 => ExportDtype::BFloat16,
        };
        let options = ExportOptions { format, weights: dtype, max_shard_bytes: self.max_shard_size };
        let volume = FileSystemVolume::new(parent);
        let result = export_weights(checkpoint, weights, &options, &volume, name, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let ExportSummary { files, tensors, bytes, .. } = result?;
        let step = checkpoint.manifest().step;
        if json {
            return print_json(&json!({
                "step": step, "output": output, "files": files, "tensors": tensors, "bytes": bytes,
            }));
        }
        print_line(format!("step {step}: {tensors} tensors, {}, as {}", HumanBytes(bytes), self.output.display()));
        Ok(())
    }
}

/// Parses a size as Hugging Face transformers does, and returns the number of bytes. `KB`, `MB` and `GB` are powers of
/// 1000, and `KiB`, `MiB` and `GiB` are powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 6] =
        [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1000)];
    let unit = UNITS.iter().find_map(|&(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let size = unit.and_then(|(number, bytes)| number.trim().parse::<u64>().ok()?.checked_mul(bytes));
    size.filter(|&bytes| bytes > 0).ok_or_else(|| "expected a size such as 5GB, 500MB or 2GiB".to_owned())
}
