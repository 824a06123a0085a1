//! Exports a checkpoint's weights as a model directory, as an adapter's directory, or as one file. The export verifies
//! every tensor.

use ::safetensors::Dtype;

use crate::error::CheckpointError;
use crate::paths::{
    ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, SINGLE_WEIGHTS_FILE, WEIGHTS_INDEX_FILE, is_weights_file,
};
use crate::reader::CheckpointReader;
use crate::safetensors::{TensorReader, WrittenShard, f32_to_bf16, to_f32, write_file, write_shard};
use crate::save::{StageFiles, weights_index_json};
use crate::volume::{Volume, io_error_on, make_dir_idempotent, remove_tree, rename_idempotent, sync_dir};

/// The configuration file of a model directory.
const CONFIG_FILE: &str = "config.json";

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// A directory in Hugging Face's layout, with the configuration, the tokenizer and the weights. A checkpoint of
    /// adapters becomes a directory in PEFT's layout.
    HuggingFace,
    /// One safetensors file with all weights.
    SingleFile,
}

/// The floating-point type of exported weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportDtype {
    /// 32-bit floating point (torch's `float32`).
    #[default]
    Float32,
    /// Torch's `bfloat16`. Every value is rounded to the nearest bf16 value.
    BFloat16,
}

impl ExportDtype {
    fn dtype(self) -> Dtype {
        match self {
            ExportDtype::Float32 => Dtype::F32,
            ExportDtype::BFloat16 => Dtype::BF16,
        }
    }

    /// Returns the name of the type in `config.json`.
    fn torch_name(self) -> &'static str {
        match self {
            ExportDtype::Float32 => "float32",
            ExportDtype::BFloat16 => "bfloat16",
        }
    }
}

/// The settings of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The format of the output.
    pub format: ExportFormat,
    /// The element type of the written weights.
    pub weights: ExportDtype,
    /// The maximum total size, in bytes, of the tensors in one file of a model directory. A larger tensor gets a file
    /// of its own.
    pub max_shard_bytes: u64,
}

impl ExportOptions {
    /// Returns the options for `format` with fp32 weights in files of at most 5 GB, like those of transformers.
    pub fn new(format: ExportFormat) -> ExportOptions {
        ExportOptions { format, weights: ExportDtype::default(), max_shard_bytes: 5_000_000_000 }
    }
}

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// The names of the written files.
    pub files: Vec<String>,
    /// The number of written tensors.
    pub tensors: usize,
    /// The total size of the written tensors in bytes.
    pub bytes: u64,
}

/// A source of weights for an export.
pub trait ExportedWeights {
    /// Returns the names and shapes of the tensors, in the order in which the export writes them.
    fn tensors(&self) -> Vec<(String, Vec<usize>)>;

    /// Returns the values of the tensor `name` as little-endian fp32.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing or damaged, or if it can't be read.
    fn read_f32(&self, name: &str) -> Result<Vec<u8>, CheckpointError>;

    /// Checks the weights after the export has read every tensor. The default implementation accepts all weights.
    ///
    /// # Errors
    /// Returns an error if the weights are not the expected ones.
    fn check(&self) -> Result<(), CheckpointError> {
        Ok(())
    }
}

/// Exports the weights of the checkpoint itself, stage by stage.
impl ExportedWeights for CheckpointReader {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let weights = self.manifest().tensors.iter().filter(|tensor| is_weights_file(&tensor.file));
        weights.map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
    }

    fn read_f32(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let content = |problem| CheckpointError::Content { path: self.folder().into(), problem };
        let entry = self.tensor(name).ok_or_else(|| content(format!("has no tensor {name}")))?;
        to_f32(entry.dtype, self.read(entry)?)
            .ok_or_else(|| content(format!("holds {name} as {:?}: expected floating-point values", entry.dtype)))
    }
}

/// Writes the weights of `checkpoint` as `name` on the volume `out`. The output has a temporary name until it is
/// complete, so that `name` is never incomplete. After the read and verification of each tensor, `on_read` receives the
/// number of bytes of the tensor's fp32 values.
///
/// # Errors
/// Returns [`CheckpointError::Damaged`] if a tensor does not match its hash, or another error if `name` exists or the
/// volume fails. On an error, the function removes the temporary files.
pub fn export(
    checkpoint: &CheckpointReader,
    options: &ExportOptions,
    out: &dyn Volume,
    name: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    export_weights(checkpoint, checkpoint, options, out, name, on_read)
}

/// Like [`export`], but reads the weights from `weights`. All other files come from the checkpoint.
///
/// # Errors
/// Returns the errors of [`export`] and of `weights`.
pub fn export_weights(
    checkpoint: &CheckpointReader,
    weights: &dyn ExportedWeights,
    options: &ExportOptions,
    out: &dyn Volume,
    name: &str,
    on_read: &dyn Fn(u64),
) -> Result<ExportSummary, CheckpointError> {
    ensure_absent(out, name)?;
    let partial = format!(".{}", stagecoach_files::temporary_name(name));
    let write = || {
        let source = ExportSource { checkpoint, weights, kind: options.weights, tensors: weights.tensors(), on_read };
        let summary = match options.format {
            ExportFormat::HuggingFace => source.write_directory(options.max_shard_bytes, out, &partial)?,
            ExportFormat::SingleFile => source.write_single(out, &partial, name)?,
        };
        weights.check()?;
        ensure_absent(out, name)?; // the rename would replace an existing file
        rename_idempotent(out, &partial, name).map_err(io_error_on(out, "publish", name))?;
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
    let entries = out.list("").map_err(io_error_on(out, "list", ""))?;
    if entries.iter().all(|entry| entry.name != name) {
        return Ok(());
    }
    let problem = "already exists: choose another path, or remove it first".into();
    Err(CheckpointError::Content { path: out.display(name), problem })
}

/// The input of an export.
struct ExportSource<'a> {
    checkpoint: &'a CheckpointReader,
    weights: &'a dyn ExportedWeights,
    /// The element type of the written tensors.
    kind: ExportDtype,
    tensors: Vec<(String, Vec<usize>)>,
    on_read: &'a dyn Fn(u64),
}

impl ExportSource<'_> {
    fn write_directory(
        &self,
        max_shard_bytes: u64,
        out: &dyn Volume,
        folder: &str,
    ) -> Result<ExportSummary, CheckpointError> {
        make_dir_idempotent(out, folder).map_err(io_error_on(out, "create", folder))?;
        let mut summary = ExportSummary::default();
        // PEFT reads the weights of an adapter from one file
        let is_adapter = self.tensors.iter().any(|(name, _)| is_adapter_tensor(name));
        let shards = self.shards(if is_adapter { u64::MAX } else { max_shard_bytes });
        let mut written = Vec::new();
        for (at, tensors) in shards.iter().enumerate() {
            let name = match shards.len() {
                _ if is_adapter => ADAPTER_WEIGHTS_FILE.to_owned(),
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
        let other_config = if is_adapter { CONFIG_FILE } else { ADAPTER_CONFIG_FILE };
        let is_small =
            |name: &str| ![WEIGHTS_INDEX_FILE, other_config].contains(&name) && !name.ends_with(".safetensors");
        for file in self.checkpoint.manifest().files.iter().filter(|file| is_small(&file.name)) {
            let bytes = self.checkpoint.read_small_file(&file.name)?.unwrap_or_default();
            small(&file.name, &if file.name == CONFIG_FILE { self.config(bytes) } else { bytes })?;
        }
        sync_dir(out, folder)?;
        Ok(summary)
    }

    fn write_single(&self, out: &dyn Volume, partial: &str, name: &str) -> Result<ExportSummary, CheckpointError> {
        let mut summary = ExportSummary::default();
        summary.add(&self.copy_tensors(&self.tensors.iter().collect::<Vec<_>>(), out, partial)?);
        summary.files = vec![name.to_owned()];
        Ok(summary)
    }

    /// Groups the tensors into files, in order. A tensor starts a new file if it does not fit into the current file.
    fn shards(&self, max_shard_bytes: u64) -> Vec<Vec<&(String, Vec<usize>)>> {
        let mut shards: Vec<Vec<&(String, Vec<usize>)>> = Vec::new();
        let mut rest = 0;
        for tensor in &self.tensors {
            let values = tensor.1.iter().product::<usize>();
            let bytes = (values * self.kind.dtype().bitsize() / 8) as u64;
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

    /// Copies the tensors to a file, one at a time. Verifies the hash of each tensor before it writes the tensor.
    fn copy_tensors(
        &self,
        tensors: &[&(String, Vec<usize>)],
        out: &dyn Volume,
        path: &str,
    ) -> Result<WrittenShard, CheckpointError> {
        let read_verified = |name: &str| {
            let values = self.weights.read_f32(name)?;
            (self.on_read)(values.len() as u64);
            Ok(match self.kind {
                ExportDtype::Float32 => values,
                ExportDtype::BFloat16 => f32_to_bf16(&values),
            })
        };
        let reader = TensorReader::new(&read_verified);
        let views: Vec<_> = tensors.iter().map(|(name, shape)| reader.view(name, self.kind.dtype(), shape)).collect();
        reader.finish(write_shard(out, path, &views))
    }

    /// Returns `config.json` with the type of the exported weights. The key is `dtype` if the checkpoint's file has
    /// this key, and otherwise `torch_dtype`.
    fn config(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Ok(serde_json::Value::Object(mut config)) = serde_json::from_slice(&bytes) else { return bytes };
        let written = config.clone();
        let name = serde_json::Value::from(self.kind.torch_name());
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

/// Whether `name` is PEFT's name for a tensor of an adapter.
fn is_adapter_tensor(name: &str) -> bool {
    name.starts_with("base_model.model.") && name.contains(".lora_")
}

impl ExportSummary {
    fn add(&mut self, shard: &WrittenShard) {
        self.files.push(shard.file.name.clone());
        self.tensors += shard.tensors.len();
        self.bytes += shard.tensors.iter().map(|t| t.bytes).sum::<u64>();
    }
}
