//! Reads a Hugging Face model directory, such as a checkpoint's folder. As in transformers, the weights come from
//! `model.safetensors` if that file exists, and otherwise from the index and its shards. Opening a directory reads only
//! the headers of the files. A tensor's bytes are read on request.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use ::safetensors::tensor::TensorInfo;
use serde::Deserialize;

use crate::error::{CheckpointError, io};
use crate::paths::{self, ADAPTER_CONFIG_FILE, SINGLE_WEIGHTS_FILE, WEIGHTS_INDEX_FILE};
use crate::safetensors::{read_header, to_f32};
use crate::volume::FileReader;

/// The names of files with weights in PyTorch's pickle format.
const PICKLED_FILES: [&str; 3] = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"];

/// The number of bytes that a comparison of two tensors reads at a time.
const COMPARED_BYTES: usize = 1 << 20;

/// The weights of an open model directory.
#[derive(Debug)]
pub struct ModelFiles {
    folder: PathBuf,
    shards: Vec<OpenShard>,
    tensors: BTreeMap<String, StoredTensor>,
}

/// The element type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The element type, as safetensors spells it.
    pub dtype: Dtype,
    /// The dimensions.
    pub shape: Vec<usize>,
}

#[derive(Debug)]
struct OpenShard {
    path: PathBuf,
    file: File,
}

#[derive(Debug)]
struct StoredTensor {
    shard: usize,
    kind: TensorType,
    /// The offset of the first byte from the start of the file.
    offset: u64,
    bytes: usize,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl ModelFiles {
    /// Opens the directory's files of weights and reads their headers, but no tensor.
    ///
    /// # Errors
    /// Returns an error if the directory has an adapter, if a file is missing or truncated, or if a file does not match
    /// the index or its header.
    pub fn open(folder: &Path) -> Result<ModelFiles, CheckpointError> {
        refuse_adapter(folder)?;
        let mut files = ModelFiles { folder: folder.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        match files.add_shard(SINGLE_WEIGHTS_FILE) {
            Ok(tensors) => files.tensors = tensors,
            Err(error) if error.is_not_found() => match read_index(folder)? {
                Some(index) => files.open_indexed(index)?,
                None => return Err(no_weights(folder)),
            },
            Err(error) => return Err(error),
        }
        Ok(files)
    }

    /// Returns a note for the user if the directory has an index of shards that is ignored, because the weights come
    /// from `model.safetensors`.
    pub fn note(&self) -> Option<String> {
        let is_single = self.shards.iter().any(|shard| shard.path == self.folder.join(SINGLE_WEIGHTS_FILE));
        (is_single && self.folder.join(WEIGHTS_INDEX_FILE).exists()).then(|| {
            format!(
                "{} has {SINGLE_WEIGHTS_FILE} beside {WEIGHTS_INDEX_FILE}: the single file is read, as transformers \
                 does, and the index is not",
                self.folder.display()
            )
        })
    }

    fn open_indexed(&mut self, index: Index) -> Result<(), CheckpointError> {
        let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in index.weight_map {
            named.entry(file).or_default().push(tensor);
        }
        for (file, tensors) in named {
            if !paths::is_plain_file_name(&file) {
                return Err(self.content_error(
                    WEIGHTS_INDEX_FILE,
                    format!("names the shard {file:?}, which is no file of this folder"),
                ));
            }
            let mut stored = self.add_shard(&file)?;
            for name in tensors {
                let tensor = stored.remove(&name).ok_or_else(|| {
                    self.content_error(&file, format!("lacks {name}, which {WEIGHTS_INDEX_FILE} puts there"))
                })?;
                self.tensors.insert(name, tensor);
            }
        }
        Ok(())
    }

    /// Opens a shard and returns its tensors.
    fn add_shard(&mut self, name: &str) -> Result<BTreeMap<String, StoredTensor>, CheckpointError> {
        let path = self.folder.join(name);
        let file = File::open(&path).map_err(io("open", &path))?;
        if file.metadata().map_err(io("read", &path))?.is_dir() {
            return Err(self.content_error(name, "is a folder, expected a safetensors file".into()));
        }
        let header = read_header(&file, &path)?;
        let shard = self.shards.len();
        self.shards.push(OpenShard { path, file });
        let stored = |(name, TensorInfo { dtype, shape, data_offsets: (from, to) }, offset)| {
            (name, StoredTensor { shard, kind: TensorType { dtype, shape }, offset, bytes: to - from })
        };
        Ok(header.into_iter().map(stored).collect())
    }

    pub(crate) fn missing_tensor_error(&self, name: &str) -> CheckpointError {
        CheckpointError::Content { path: self.folder.clone(), problem: format!("has no tensor {name}") }
    }

    fn content_error(&self, file: &str, problem: String) -> CheckpointError {
        CheckpointError::Content { path: self.folder.join(file), problem }
    }

    /// Returns the path of the directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the sorted names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the element type and shape of a tensor, or `None` if there is no such tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorType> {
        self.tensors.get(name).map(|tensor| &tensor.kind)
    }

    /// Returns the path of the file that holds a tensor, or `None` if there is no such tensor.
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).and_then(|tensor| self.shards.get(tensor.shard)).map(|shard| shard.path.as_path())
    }

    /// Reads the little-endian bytes of one tensor.
    ///
    /// # Errors
    /// Returns an error if there is no such tensor, or if its file is truncated or can't be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let (tensor, shard) = self.find(name)?;
        let mut bytes = vec![0; tensor.bytes];
        FileReader::read_at(&shard.file, tensor.offset, &mut bytes).map_err(io("read", &shard.path))?;
        Ok(bytes)
    }

    /// Whether two tensors have the same type, shape and bytes.
    ///
    /// # Errors
    /// Returns the errors of [`ModelFiles::read`].
    pub fn are_equal(&self, first: &str, second: &str) -> Result<bool, CheckpointError> {
        let ((first, file), (second, other)) = (self.find(first)?, self.find(second)?);
        if first.kind != second.kind {
            return Ok(false);
        }
        let mut blocks = [vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]];
        for begin in (0..first.bytes).step_by(COMPARED_BYTES) {
            let bytes = COMPARED_BYTES.min(first.bytes - begin);
            for (block, (tensor, shard)) in blocks.iter_mut().zip([(first, file), (second, other)]) {
                block.truncate(bytes);
                FileReader::read_at(&shard.file, tensor.offset + begin as u64, block)
                    .map_err(io("read", &shard.path))?;
            }
            if blocks[0] != blocks[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn find(&self, name: &str) -> Result<(&StoredTensor, &OpenShard), CheckpointError> {
        let found = self.tensors.get(name).and_then(|tensor| Some((tensor, self.shards.get(tensor.shard)?)));
        found.ok_or_else(|| self.missing_tensor_error(name))
    }

    /// Reads one tensor's values as little-endian fp32, four bytes a value. The conversion of F16 and BF16 is exact.
    /// F64 is rounded to the nearest value.
    ///
    /// # Errors
    /// Returns the errors of [`ModelFiles::read`], or an error if the element type is not supported.
    pub fn read_f32(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let bytes = self.read(name)?;
        let converted = self.tensor(name).and_then(|kind| to_f32(kind.dtype, bytes));
        converted.ok_or_else(|| {
            let problem = format!("has {name} in a type other than F32, F16, BF16 and F64");
            CheckpointError::Content { path: self.folder.clone(), problem }
        })
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}{:?}", self.dtype, self.shape)
    }
}

/// Reads the index of a directory. Returns `None` if the directory has no index.
fn read_index(folder: &Path) -> Result<Option<Index>, CheckpointError> {
    let path = folder.join(WEIGHTS_INDEX_FILE);
    let Some(text) = stagecoach_files::read_if_exists(&path).map_err(io("read", &path))? else { return Ok(None) };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|e| CheckpointError::Content { path, problem: format!("is no index of weights: {e}") })
}

/// Refuses a directory with an adapter. An adapter's weights are changes to the weights of a model, which is in the
/// same directory or elsewhere.
///
/// # Errors
/// Returns an error if the directory has an adapter.
pub fn refuse_adapter(folder: &Path) -> Result<(), CheckpointError> {
    match folder.join(ADAPTER_CONFIG_FILE).exists() {
        false => Ok(()),
        true => Err(CheckpointError::Content {
            path: folder.to_owned(),
            problem: format!(
                "holds an adapter ({ADAPTER_CONFIG_FILE}), which this trainer does not apply: merge it into its \
                 model (merge_and_unload of peft), and save that"
            ),
        }),
    }
}

fn no_weights(folder: &Path) -> CheckpointError {
    let pickled = PICKLED_FILES.into_iter().find(|name| folder.join(name).exists());
    let problem = match (folder.is_dir(), pickled) {
        (false, _) => "is not a folder, expected a Hugging Face model directory".into(),
        (true, Some(name)) => format!(
            "has its weights in {name}, and this trainer reads safetensors only: load the model with transformers, \
             and save it with save_pretrained"
        ),
        (true, None) => {
            format!("has no weights in safetensors: neither {WEIGHTS_INDEX_FILE} nor {SINGLE_WEIGHTS_FILE} is there")
        }
    };
    CheckpointError::Content { path: folder.to_owned(), problem }
}
