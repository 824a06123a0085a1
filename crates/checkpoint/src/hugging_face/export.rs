//! Export of a checkpoint's weights as a model directory, or as one file. Every tensor is verified.

use ::safetensors::Dtype;

use crate::error::CheckpointError;
use crate::manifest::TensorEntry;
use crate::paths::{SINGLE_WEIGHTS_FILE, WEIGHTS_INDEX_FILE, is_weights_file};
use crate::reader::CheckpointReader;
use crate::safetensors::{TensorReader, WrittenShard, f32_to_bf16, to_f32, write_file, write_shard};
use crate::save::{StageFiles, weights_index_json};
use crate::volume::{Volume, make_dir_idempotent, remove_tree, rename_idempotent, sync_dir, volume_io};

/// The configuration of a model directory.
const CONFIG_FILE: &str = "config.json";

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// A directory in Hugging Face's layout: configuration, tokenizer, and weights.
    HuggingFace,
    /// One safetensors file with all weights.
    SingleFile,
}

/// The floating-point type of exported weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportType {
    /// fp32.
    #[default]
    Float32,
    /// bf16, rounded to the nearest value.
    BFloat16,
}

impl ExportType {
    fn dtype(self) -> Dtype {
        match self {
            ExportType::Float32 => Dtype::F32,
            ExportType::BFloat16 => Dtype::BF16,
        }
    }

    /// The name in `config.json`.
    fn torch_name(self) -> &'static str {
        match self {
            ExportType::Float32 => "float32",
            ExportType::BFloat16 => "bfloat16",
        }
    }
}

/// The settings of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The format.
    pub format: ExportFormat,
    /// The type of the weights.
    pub weights: ExportType,
    /// The maximum number of bytes of the tensors in a file of a directory. A larger tensor has a file of its own.
    pub max_shard_bytes: u64,
}

impl ExportOptions {
    /// The format with fp32 weights, in files of 5 GB like those of transformers.
    pub fn new(format: ExportFormat) -> ExportOptions {
        ExportOptions { format, weights: ExportType::default(), max_shard_bytes: 5_000_000_000 }
    }
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
    options: &ExportOptions,
    out: &dyn Volume,
    name: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    ensure_absent(out, name)?;
    let partial = format!(".{}", stagecoach_files::temporary_name(name));
    let write = || {
        let source = Source { checkpoint, weights: options.weights, on_read };
        let summary = match options.format {
            ExportFormat::HuggingFace => source.write_directory(options.max_shard_bytes, out, &partial)?,
            ExportFormat::SingleFile => source.write_single(out, &partial, name)?,
        };
        ensure_absent(out, name)?; // because a rename would replace an existing file
        rename_idempotent(out, &partial, name).map_err(volume_io(out, "publish", name))?;
        sync_dir(out, "")?;
        Ok(summary)
    };
    write().inspect_err(|_| {
        let _ = match options.format {
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

/// The weights to export.
struct Source<'a> {
    checkpoint: &'a CheckpointReader,
    weights: ExportType,
    on_read: &'a dyn Fn(u64),
}

impl Source<'_> {
    fn write_directory(
        &self,
        max_shard_bytes: u64,
        out: &dyn Volume,
        folder: &str,
    ) -> Result<ExportSummary, CheckpointError> {
        make_dir_idempotent(out, folder).map_err(volume_io(out, "create", folder))?;
        let mut summary = ExportSummary::default();
        let shards = self.shards(max_shard_bytes);
        let mut written = Vec::new();
        for (at, tensors) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => SINGLE_WEIGHTS_FILE.to_owned(),
                all => format!("model-{:05}-of-{all:05}.safetensors", at + 1),
            };
            let weights = self.copy_tensors(tensors, out, &format!("{folder}/{name}"))?;
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
        let is_small = |name: &str| name != WEIGHTS_INDEX_FILE && !name.ends_with(".safetensors");
        for file in self.checkpoint.manifest().files.iter().filter(|file| is_small(&file.name)) {
            let bytes = self.checkpoint.read_small_file(&file.name)?.unwrap_or_default();
            small(&file.name, &if file.name == CONFIG_FILE { self.config(bytes) } else { bytes })?;
        }
        sync_dir(out, folder)?;
        Ok(summary)
    }

    fn write_single(&self, out: &dyn Volume, partial: &str, name: &str) -> Result<ExportSummary, CheckpointError> {
        let mut summary = ExportSummary::default();
        summary.add(&self.copy_tensors(&self.tensors().collect::<Vec<_>>(), out, partial)?);
        summary.files = vec![name.to_owned()];
        Ok(summary)
    }

    /// The weights, stage by stage.
    fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.checkpoint.manifest().tensors.iter().filter(|tensor| is_weights_file(&tensor.file))
    }

    /// The tensors of each file, in order. A tensor starts a new file if it does not fit into the last one.
    fn shards(&self, max_shard_bytes: u64) -> Vec<Vec<&TensorEntry>> {
        let mut shards: Vec<Vec<&TensorEntry>> = Vec::new();
        let mut rest = 0;
        for tensor in self.tensors() {
            let values = tensor.shape.iter().product::<usize>();
            let bytes = (values * self.weights.dtype().bitsize() / 8) as u64;
            match shards.last_mut().filter(|_| bytes <= rest) {
                Some(shard) => shard.push(tensor),
                None => {
                    shards.push(vec![tensor]);
                    rest = max_shard_bytes;
                }
            }
            rest = rest.saturating_sub(bytes);
        }
        shards
    }

    /// Copies one tensor at a time. The hash of each tensor is verified before the tensor is written.
    fn copy_tensors(
        &self,
        tensors: &[&TensorEntry],
        out: &dyn Volume,
        path: &str,
    ) -> Result<WrittenShard, CheckpointError> {
        let read_verified = |name: &str| {
            let content = |problem| CheckpointError::Content { path: self.checkpoint.folder().into(), problem };
            let entry = self.checkpoint.tensor(name).ok_or_else(|| content(format!("has no tensor {name}")))?;
            let bytes = self.checkpoint.read(entry)?;
            (self.on_read)(entry.bytes);
            let values = to_f32(entry.dtype, bytes)
                .ok_or_else(|| content(format!("holds {name} as {:?}: expected floating-point values", entry.dtype)))?;
            Ok(match self.weights {
                ExportType::Float32 => values,
                ExportType::BFloat16 => f32_to_bf16(&values),
            })
        };
        let reader = TensorReader::new(&read_verified);
        let views: Vec<_> = tensors.iter().map(|t| reader.view(&t.name, self.weights.dtype(), &t.shape)).collect();
        reader.finish(write_shard(out, path, &views))
    }

    /// `config.json` with the type of the weights, under the key that the checkpoint's file uses.
    fn config(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Ok(serde_json::Value::Object(mut config)) = serde_json::from_slice(&bytes) else { return bytes };
        let written = config.clone();
        let name = serde_json::Value::from(self.weights.torch_name());
        if !config.contains_key("dtype") {
            config.insert("torch_dtype".into(), name.clone());
        }
        for key in ["dtype", "torch_dtype"] {
            if let Some(value) = config.get_mut(key) {
                value.clone_from(&name);
            }
        }
        if config == written {
            return bytes;
        }
        format!("{:#}\n", serde_json::Value::Object(config)).into_bytes()
    }
}

impl ExportSummary {
    fn add(&mut self, shard: &WrittenShard) {
        self.files.push(shard.file.name.clone());
        self.tensors += shard.tensors.len();
        self.bytes += shard.tensors.iter().map(|t| t.bytes).sum::<u64>();
    }
}
