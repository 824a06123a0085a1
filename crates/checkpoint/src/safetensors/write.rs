//! Writes safetensors files with hashes, one tensor at a time.

use std::collections::{BTreeSet, HashMap};
use std::io;

use ::safetensors::View;
use ::safetensors::tensor::{Metadata, TensorInfo};
use blake3::{Hash, Hasher};
use serde::{Deserialize, Serialize};

use crate::error::CheckpointError;
use crate::manifest::{FileEntry, TensorEntry};
use crate::volume::{FileWriter, Volume, io_error_on};

/// The number of bytes per write, and per update of the hashes.
const WRITE_CHUNK_BYTES: usize = 1 << 20;

/// A shard that has been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenShard {
    /// The shard's file.
    pub file: FileEntry,
    /// The shard's tensors, in the file's order.
    pub tensors: Vec<TensorEntry>,
}

/// A function that is called before each write to a file. An error of the function cancels the remaining writes.
pub type CancelCheck<'a> = &'a (dyn Fn() -> io::Result<()> + Sync);

/// Writes `tensors` (name and value) as the safetensors file `path`, and syncs the file. [`View::data`] is called for
/// one tensor at a time, so that views that read on demand keep only one tensor in memory.
///
/// # Errors
/// Returns an error if the volume fails, if a name occurs twice, or if a tensor's length does not match its shape.
pub fn write_shard<V: View>(
    volume: &dyn Volume,
    path: &str,
    tensors: &[(String, V)],
) -> Result<WrittenShard, CheckpointError> {
    write_shard_cancellable(volume, path, tensors, &|| Ok(()))
}

/// Like [`write_shard`], but calls `check_cancelled` before each write. An error of `check_cancelled` cancels the
/// remaining writes.
pub(crate) fn write_shard_cancellable<V: View>(
    volume: &dyn Volume,
    path: &str,
    tensors: &[(String, V)],
    check_cancelled: CancelCheck,
) -> Result<WrittenShard, CheckpointError> {
    // safetensors requires the widest types first, for alignment
    let mut order: Vec<&(String, V)> = tensors.iter().collect();
    order.sort_by(|(a, x), (b, y)| y.dtype().cmp(&x.dtype()).then(a.cmp(b)));
    let header =
        encode_header(&order).map_err(|problem| CheckpointError::Content { path: volume.display(path), problem })?;
    let name = file_name(path);
    let mut file = HashingWriter::create(volume, path, check_cancelled)?;
    file.write(&header)?;
    let mut entries = Vec::with_capacity(order.len());
    for (tensor, view) in order {
        let offset = file.bytes;
        let data = view.data();
        if data.len() != view.data_len() {
            let problem = format!("{tensor} has {} bytes, but {} were announced", data.len(), view.data_len());
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
    Ok(WrittenShard { file: file.finish(name)?, tensors: entries })
}

/// Writes and syncs a small file.
///
/// # Errors
/// Returns an error if the volume fails.
pub(crate) fn write_file(volume: &dyn Volume, path: &str, bytes: &[u8]) -> Result<FileEntry, CheckpointError> {
    let mut file = HashingWriter::create(volume, path, &|| Ok(()))?;
    file.write(bytes)?;
    file.finish(file_name(path))
}

/// Returns the last component of a path.
fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// Returns the header, with its length as a prefix, and with padding that aligns the tensors.
fn encode_header<V: View>(tensors: &[&(String, V)]) -> Result<Vec<u8>, String> {
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
    // Hugging Face's loaders require this entry
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(metadata), infos).map_err(|e| format!("cannot be encoded: {e}"))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| format!("cannot be encoded: {e}"))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// Writes a file, and counts and hashes its bytes.
struct HashingWriter<'v> {
    volume: &'v dyn Volume,
    path: &'v str,
    writer: Box<dyn FileWriter>,
    hasher: Hasher,
    bytes: u64,
    check_cancelled: CancelCheck<'v>,
}

impl<'v> HashingWriter<'v> {
    fn create(
        volume: &'v dyn Volume,
        path: &'v str,
        check_cancelled: CancelCheck<'v>,
    ) -> Result<HashingWriter<'v>, CheckpointError> {
        let writer = volume.create(path).map_err(io_error_on(volume, "create", path))?;
        Ok(HashingWriter { volume, path, writer, hasher: Hasher::new(), bytes: 0, check_cancelled })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.hasher.update(bytes);
        self.write_chunks(bytes)
    }

    /// Writes a tensor and returns its hash. A large tensor is hashed and written in parallel, because the two
    /// operations take about equally long.
    fn write_and_hash(&mut self, bytes: &[u8]) -> Result<Hash, CheckpointError> {
        let mut hasher = std::mem::take(&mut self.hasher);
        let mut own = Hasher::new();
        let mut hash = || {
            // the hashers of the tensor and of the file both read a chunk while it is in the CPU's cache
            for chunk in bytes.chunks(WRITE_CHUNK_BYTES) {
                own.update(chunk);
                hasher.update(chunk);
            }
        };
        if bytes.len() < WRITE_CHUNK_BYTES {
            hash();
            self.write_chunks(bytes)?;
        } else {
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| self.write_chunks(bytes));
                hash();
                writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
        }
        self.hasher = hasher;
        Ok(own.finalize())
    }

    fn write_chunks(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        for chunk in bytes.chunks(WRITE_CHUNK_BYTES) {
            let written = (self.check_cancelled)().and_then(|()| self.writer.write(chunk));
            written.map_err(io_error_on(self.volume, "write", self.path))?;
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self, name: String) -> Result<FileEntry, CheckpointError> {
        self.writer.sync().map_err(io_error_on(self.volume, "sync", self.path))?;
        Ok(FileEntry { name, bytes: self.bytes, blake3: self.hasher.finalize().to_hex().to_string() })
    }
}
