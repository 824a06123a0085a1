//! safetensors files, written a tensor at a time, hashed on the way.

use std::collections::{BTreeSet, HashMap};

use blake3::{Hash, Hasher};
use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, on};
use crate::manifest::{FileEntry, TensorEntry};
use crate::volume::{FileWriter, Volume};

/// Bytes hashed or written at once.
const PIECE: usize = 1 << 20;

/// A shard as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    /// The file.
    pub file: FileEntry,
    /// What is in it, in the file's order.
    pub tensors: Vec<TensorEntry>,
}

/// Writes `tensors` (name and value) as the safetensors file `path`, durably. The bytes are asked for one tensor at a
/// time, so a [`View`] that makes them on demand never holds two.
///
/// # Errors
/// If the volume refuses, or a name occurs twice, or a value's length doesn't fit its shape.
pub fn write_shard<V: View>(
    volume: &dyn Volume,
    path: &str,
    tensors: &[(String, V)],
) -> Result<ShardFile, CheckpointError> {
    // as safetensors asks: the widest types first, for alignment
    let mut order: Vec<&(String, V)> = tensors.iter().collect();
    order.sort_by(|(a, x), (b, y)| y.dtype().cmp(&x.dtype()).then(a.cmp(b)));
    let header = header(&order).map_err(|problem| CheckpointError::Content { path: volume.display(path), problem })?;
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    let mut file = HashedFile::create(volume, path)?;
    file.write(&header)?;
    let mut entries = Vec::with_capacity(order.len());
    for (tensor, view) in order {
        let offset = file.bytes;
        let data = view.data();
        if data.len() != view.data_len() {
            let problem = format!("{tensor} has {} bytes, and {} were announced", data.len(), view.data_len());
            return Err(CheckpointError::Content { path: volume.display(path), problem });
        }
        let hash = file.write_and_hash(&data)?;
        entries.push(TensorEntry {
            name: tensor.clone(),
            file: name.clone(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            offset,
            bytes: data.len() as u64,
            blake3: hash.to_hex().to_string(),
        });
    }
    Ok(ShardFile { file: file.finish(name)?, tensors: entries })
}

/// Writes a small file, durably.
///
/// # Errors
/// If the volume refuses.
pub(crate) fn write_file(volume: &dyn Volume, path: &str, bytes: &[u8]) -> Result<FileEntry, CheckpointError> {
    let mut file = HashedFile::create(volume, path)?;
    file.write(bytes)?;
    file.finish(path.rsplit('/').next().unwrap_or(path).to_owned())
}

/// The length of the header and the header, padded so that the tensors start aligned.
fn header<V: View>(tensors: &[&(String, V)]) -> Result<Vec<u8>, String> {
    let mut names = BTreeSet::new();
    let mut infos = Vec::with_capacity(tensors.len());
    let mut at = 0;
    for (name, view) in tensors {
        if !names.insert(name) {
            return Err(format!("would hold {name} twice"));
        }
        let end = at + view.data_len();
        let info = TensorInfo { dtype: view.dtype(), shape: view.shape().to_vec(), data_offsets: (at, end) };
        infos.push((name.clone(), info));
        at = end;
    }
    // what Hugging Face's loaders ask for
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(metadata), infos).map_err(|e| format!("cannot be encoded: {e}"))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| format!("cannot be encoded: {e}"))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// A file that knows its own size and hash.
struct HashedFile<'v> {
    volume: &'v dyn Volume,
    path: &'v str,
    writer: Box<dyn FileWriter>,
    hasher: Hasher,
    bytes: u64,
}

impl<'v> HashedFile<'v> {
    fn create(volume: &'v dyn Volume, path: &'v str) -> Result<HashedFile<'v>, CheckpointError> {
        let writer = volume.create(path).map_err(on(volume, "create", path))?;
        Ok(HashedFile { volume, path, writer, hasher: Hasher::new(), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.hasher.update(bytes);
        self.pass_on(bytes)
    }

    /// Writes a tensor and gives its own hash. A large one is on its way while it is hashed: the two take about as long.
    fn write_and_hash(&mut self, bytes: &[u8]) -> Result<Hash, CheckpointError> {
        let mut hasher = std::mem::take(&mut self.hasher);
        let mut own = Hasher::new();
        let mut hash = || {
            // a piece is in the cache for both
            for piece in bytes.chunks(PIECE) {
                own.update(piece);
                hasher.update(piece);
            }
        };
        if bytes.len() < PIECE {
            hash();
            self.pass_on(bytes)?;
        } else {
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| self.pass_on(bytes));
                hash();
                writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
        }
        self.hasher = hasher;
        Ok(own.finalize())
    }

    fn pass_on(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        for piece in bytes.chunks(PIECE) {
            self.writer.write(piece).map_err(on(self.volume, "write", self.path))?;
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self, name: String) -> Result<FileEntry, CheckpointError> {
        self.writer.sync().map_err(on(self.volume, "sync", self.path))?;
        Ok(FileEntry { name, bytes: self.bytes, blake3: self.hasher.finalize().to_hex().to_string() })
    }
}
