//! Export of a checkpoint's weights as a model directory, or as one file. Every tensor is verified.

use crate::error::CheckpointError;
use crate::manifest::TensorEntry;
use crate::paths::{SINGLE_WEIGHTS_FILE, WEIGHTS_INDEX_FILE, is_weights_file};
use crate::reader::CheckpointReader;
use crate::safetensors::{TensorReader, WrittenShard, write_file, write_shard};
use crate::save::{StageFiles, weights_index_json};
use crate::volume::{Volume, make_dir_idempotent, remove_tree, rename_idempotent, sync_dir, volume_io};

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// A directory in Hugging Face's layout: configuration, tokenizer, and weights.
    HuggingFace,
    /// One safetensors file with all weights.
    SingleFile,
}

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// Names of the files.
    pub files: Vec<String>,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
}

/// Writes the weights of `checkpoint` as `name` on the volume `out`. The files have a temporary name until the last
/// rename, so that `name` is never incomplete. `on_read` receives the number of bytes of each tensor that was read and
/// verified.
///
/// # Errors
/// `Damaged` if a tensor does not match its hash; if `name` exists; or if the volume fails. The temporary files are
/// then removed.
pub fn export(
    checkpoint: &CheckpointReader,
    format: ExportFormat,
    out: &dyn Volume,
    name: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    ensure_absent(out, name)?;
    let partial = format!(".{}", stagecoach_files::temporary_name(name));
    let write = || {
        let summary = match format {
            ExportFormat::HuggingFace => write_directory(checkpoint, out, &partial, on_read)?,
            ExportFormat::SingleFile => write_single(checkpoint, out, &partial, name, on_read)?,
        };
        ensure_absent(out, name)?; // because a rename would replace an existing file
        rename_idempotent(out, &partial, name).map_err(volume_io(out, "publish", name))?;
        sync_dir(out, "")?;
        Ok(summary)
    };
    write().inspect_err(|_| {
        let _ = match format {
            ExportFormat::HuggingFace => remove_tree(out, &partial),
            ExportFormat::SingleFile => out.remove_file(&partial),
        };
    })
}

fn ensure_absent(out: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
    let entries = out.list("").map_err(volume_io(out, "list", ""))?;
    if entries.iter().all(|entry| entry.name != name) {
        return Ok(());
    }
    let problem = "is there already: choose another place, or remove it first".into();
    Err(CheckpointError::Content { path: out.display(name), problem })
}

fn write_directory(
    checkpoint: &CheckpointReader,
    out: &dyn Volume,
    folder: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    make_dir_idempotent(out, folder).map_err(volume_io(out, "create", folder))?;
    let mut summary = ExportSummary::default();
    let files = &checkpoint.manifest().files;
    let shards: Vec<&str> = files.iter().map(|f| f.name.as_str()).filter(|name| is_weights_file(name)).collect();
    let mut written = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE_WEIGHTS_FILE.to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", at + 1),
        };
        let tensors: Vec<&TensorEntry> = checkpoint.manifest().tensors.iter().filter(|t| t.file == *shard).collect();
        let weights = copy_tensors(checkpoint, &tensors, out, &format!("{folder}/{name}"), on_read)?;
        summary.add(&weights);
        written.push(StageFiles { weights: Some(weights), optimizer: None });
    }
    let mut small = |name: &str, bytes: &[u8]| {
        summary.files.push(name.to_owned());
        write_file(out, &format!("{folder}/{name}"), bytes).map(drop)
    };
    if written.len() > 1 {
        small(WEIGHTS_INDEX_FILE, weights_index_json(&written).as_bytes())?;
    }
    for file in files.iter().filter(|f| f.name != WEIGHTS_INDEX_FILE && !f.name.ends_with(".safetensors")) {
        small(&file.name, &checkpoint.read_small_file(&file.name)?.unwrap_or_default())?;
    }
    sync_dir(out, folder)?;
    Ok(summary)
}

fn write_single(
    checkpoint: &CheckpointReader,
    out: &dyn Volume,
    partial: &str,
    name: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    let tensors: Vec<&TensorEntry> =
        checkpoint.manifest().tensors.iter().filter(|t| is_weights_file(&t.file)).collect();
    let mut summary = ExportSummary::default();
    summary.add(&copy_tensors(checkpoint, &tensors, out, partial, on_read)?);
    summary.files = vec![name.to_owned()];
    Ok(summary)
}

/// Copies one tensor at a time. The hash of each tensor is verified before the tensor is written.
fn copy_tensors(
    checkpoint: &CheckpointReader,
    tensors: &[&TensorEntry],
    out: &dyn Volume,
    path: &str,
    on_read: &dyn Fn(u64),
) -> Result<WrittenShard, CheckpointError> {
    let read_verified = |name: &str| {
        let entry = checkpoint.tensor(name).ok_or_else(|| CheckpointError::Content {
            path: checkpoint.folder().into(),
            problem: format!("has no tensor {name}"),
        })?;
        let bytes = checkpoint.read(entry)?;
        on_read(entry.bytes);
        Ok(bytes)
    };
    let reader = TensorReader::new(&read_verified);
    let views: Vec<_> = tensors.iter().map(|t| reader.view(&t.name, t.dtype, &t.shape)).collect();
    reader.finish(write_shard(out, path, &views))
}

impl ExportSummary {
    fn add(&mut self, shard: &WrittenShard) {
        self.files.push(shard.file.name.clone());
        self.tensors += shard.tensors.len();
        self.bytes += shard.tensors.iter().map(|t| t.bytes).sum::<u64>();
    }
}
