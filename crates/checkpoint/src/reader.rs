//! Reads checkpoints. The reader verifies the hash of all bytes before it returns them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, ErrorKind};

use crate::error::{CheckpointError, Damage, io};
use crate::manifest::{FileEntry, Manifest, TensorEntry};
use crate::paths::{self, MANIFEST_FILE};
use crate::volume::{FileReader, Volume, io_error_on, read_file};

/// The number of bytes per read while a file is hashed.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// An open checkpoint, or only some of its files. The reader holds the files open, so that they stay readable if the
/// checkpoint is pruned.
pub struct CheckpointReader {
    manifest: Manifest,
    folder: String,
    files: BTreeMap<String, Box<dyn FileReader>>,
    tensors: HashMap<String, usize>,
}

/// Reads a checkpoint's manifest and verifies its hash. The other files are not checked.
///
/// # Errors
/// Returns [`CheckpointError::Damaged`] if the manifest is missing or invalid, or another error if the volume fails.
pub fn read_manifest(volume: &dyn Volume, step: u64) -> Result<Manifest, CheckpointError> {
    let path = format!("{}/{MANIFEST_FILE}", paths::checkpoint_path(step));
    let bytes = read_file(volume, &path).map_err(|e| missing_as_damage(volume, step, &path, e))?;
    let damaged = |reason| CheckpointError::Damaged(Damage { step, file: path.clone(), reason });
    let manifest = Manifest::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    if manifest.step == step { Ok(manifest) } else { Err(damaged(format!("belongs to step {}", manifest.step))) }
}

/// Opens all files of a checkpoint, or only the files that hold the tensors `names`.
pub(crate) fn open_files(
    volume: &dyn Volume,
    step: u64,
    names: Option<&HashSet<String>>,
) -> Result<CheckpointReader, CheckpointError> {
    let manifest = read_manifest(volume, step)?;
    let files_with = |names: &HashSet<String>| -> HashSet<&str> {
        manifest.tensors.iter().filter(|tensor| names.contains(&tensor.name)).map(|tensor| &*tensor.file).collect()
    };
    let needed = names.map(files_with);
    let is_needed = |file: &&FileEntry| needed.as_ref().is_none_or(|needed| needed.contains(&*file.name));
    let mut files = BTreeMap::new();
    for file in manifest.files.iter().filter(is_needed) {
        files.insert(file.name.clone(), open_file(volume, step, file)?);
    }
    let folder = volume.display(&paths::checkpoint_path(step));
    let tensors = manifest.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
    Ok(CheckpointReader { manifest, folder: folder.to_string_lossy().into_owned(), files, tensors })
}

/// Opens a file of a checkpoint and checks its size.
pub(crate) fn open_file(
    volume: &dyn Volume,
    step: u64,
    entry: &FileEntry,
) -> Result<Box<dyn FileReader>, CheckpointError> {
    let path = format!("{}/{}", paths::checkpoint_path(step), entry.name);
    let reader = volume.open(&path).map_err(|e| missing_as_damage(volume, step, &path, e))?;
    let size = reader.size().map_err(|e| missing_as_damage(volume, step, &path, e))?;
    if size == entry.bytes {
        return Ok(reader);
    }
    let reason = format!("has {size} bytes, but {} were written", entry.bytes);
    Err(CheckpointError::Damaged(Damage { step, file: path, reason }))
}

/// The damage that is reported for a stale file handle. Stale handles occur only on NFS: on other file systems, an open
/// file stays readable after its removal.
const REMOVED_WHILE_OPEN: &str = "was removed while it was open";

/// Converts an error that shows a missing, removed or replaced file to `Damaged`, and any other error to `Io`.
fn missing_as_damage(volume: &dyn Volume, step: u64, path: &str, error: io::Error) -> CheckpointError {
    let reason = match error.kind() {
        ErrorKind::NotFound => "is missing",
        ErrorKind::StaleNetworkFileHandle => REMOVED_WHILE_OPEN,
        ErrorKind::IsADirectory => "is a folder",
        _ => return io_error_on(volume, "read", path)(error),
    };
    CheckpointError::Damaged(Damage { step, file: path.to_owned(), reason: reason.into() })
}

impl CheckpointReader {
    /// Returns the path of the checkpoint, for messages.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Returns the manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the manifest's entry of a tensor, or `None` if there is no such tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name).and_then(|&at| self.manifest.tensors.get(at))
    }

    /// Reads the little-endian bytes of one tensor into `buffer`, which must have the tensor's size.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Damaged`] if the bytes do not match their hash. Returns another error if `buffer`
    /// does not have the tensor's size, or if the volume fails.
    pub fn read_into(&self, tensor: &TensorEntry, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        if buffer.len() as u64 != tensor.bytes {
            let reason = format!("{} has {} bytes, but {} were requested", tensor.name, tensor.bytes, buffer.len());
            return Err(CheckpointError::Content { path: self.path(&tensor.file).into(), problem: reason });
        }
        self.read_range(&tensor.file, tensor.offset, buffer)?;
        if blake3::hash(buffer).to_hex().as_str() == tensor.blake3 {
            return Ok(());
        }
        Err(self.damage_error(&tensor.file, format!("does not hold the bytes of {} that were written", tensor.name)))
    }

    /// Reads one tensor's bytes into a new buffer.
    ///
    /// # Errors
    /// Returns the errors of [`CheckpointReader::read_into`].
    pub fn read(&self, tensor: &TensorEntry) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; tensor.bytes as usize];
        self.read_into(tensor, &mut bytes).map(|()| bytes)
    }

    /// Reads all of a file, such as `config.json`, into memory. Returns `None` if there is no such file.
    ///
    /// # Errors
    /// Returns the errors of [`CheckpointReader::read_into`].
    pub fn read_small_file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(entry) = self.manifest.files.iter().find(|f| f.name == name) else { return Ok(None) };
        let mut bytes = vec![0; entry.bytes as usize];
        self.read_range(name, 0, &mut bytes)?;
        self.check_hash(entry, blake3::hash(&bytes)).map(|()| Some(bytes))
    }

    /// Verifies the hash of every file.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Damaged`] for the first file that does not match its hash, or another error if the
    /// volume fails.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for entry in &self.manifest.files {
            self.verify_file(self.reader(&entry.name)?, entry, &mut |_| {})?;
        }
        Ok(())
    }

    /// Verifies the hash of `file`, which is the open file of `entry`. Calls `on_read` with the number of bytes of each
    /// read.
    pub(crate) fn verify_file(
        &self,
        file: &dyn FileReader,
        entry: &FileEntry,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        let hash = hash_file(file, entry.bytes, on_read).map_err(|e| self.read_error(&entry.name, e))?;
        self.check_hash(entry, hash)
    }

    fn check_hash(&self, entry: &FileEntry, hash: blake3::Hash) -> Result<(), CheckpointError> {
        if hash.to_hex().as_str() == entry.blake3 {
            return Ok(());
        }
        Err(self.damage_error(&entry.name, "does not hold the bytes that were written".into()))
    }

    fn read_range(&self, file: &str, offset: u64, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        self.reader(file)?.read_at(offset, buffer).map_err(|e| self.read_error(file, e))
    }

    fn reader(&self, file: &str) -> Result<&dyn FileReader, CheckpointError> {
        self.files.get(file).map(|reader| &**reader).ok_or_else(|| {
            self.damage_error(file, "is not open: the manifest lacks it, or the caller did not request it".into())
        })
    }

    fn read_error(&self, file: &str, error: io::Error) -> CheckpointError {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.damage_error(file, "has become shorter".into()),
            ErrorKind::StaleNetworkFileHandle => self.damage_error(file, REMOVED_WHILE_OPEN.into()),
            _ => io("read", self.path(file).as_ref())(error),
        }
    }

    fn damage_error(&self, file: &str, reason: String) -> CheckpointError {
        let step = self.manifest.step;
        CheckpointError::Damaged(Damage { step, file: format!("{}/{file}", paths::checkpoint_path(step)), reason })
    }

    fn path(&self, file: &str) -> String {
        format!("{}/{file}", self.folder)
    }
}

impl std::fmt::Debug for CheckpointReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointReader")
            .field("folder", &self.folder)
            .field("step", &self.manifest.step)
            .finish_non_exhaustive()
    }
}

/// Hashes the first `bytes` bytes of a file. Calls `on_read` with the number of bytes of each read.
fn hash_file(reader: &dyn FileReader, bytes: u64, on_read: &mut dyn FnMut(u64)) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_CHUNK_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let chunk = &mut buffer[..READ_CHUNK_BYTES.min((bytes - at) as usize)];
        reader.read_at(at, chunk)?;
        hasher.update(chunk);
        at += chunk.len() as u64;
        on_read(chunk.len() as u64);
    }
    Ok(hasher.finalize())
}
