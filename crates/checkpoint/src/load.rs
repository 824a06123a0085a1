//! Finding the newest intact checkpoint, and reading from it: every byte that is used is verified by its hash.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, ErrorKind};

use crate::error::{CheckpointError, Damage, Warning, io, volume_io};
use crate::manifest::{FileEntry, Manifest, TensorEntry};
use crate::paths::{self, CHECKPOINTS_DIR, MANIFEST_FILE};
use crate::volume::{FileReader, Volume, read_file};

/// Bytes per read while hashing a file.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// The entries of `checkpoints/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Committed steps, newest first; their content is not checked.
    pub steps: Vec<u64>,
    /// What isn't ours, and is left alone.
    pub foreign: Vec<Warning>,
}

/// How thoroughly a checkpoint is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyLevel {
    /// The manifest, and the size of every file. Damaged content is found when a tensor is read.
    Sizes,
    /// Also the hash of every file.
    Contents,
}

/// The newest intact checkpoint, and the skipped ones.
#[derive(Debug)]
pub struct NewestCheckpoint {
    /// `None` if there is no checkpoint at all.
    pub checkpoint: Option<CheckpointReader>,
    /// Damage of newer ones: for [`crate::set_aside`].
    pub damage: Vec<Damage>,
    /// What isn't ours, and is left alone.
    pub foreign: Vec<Warning>,
}

/// An open checkpoint, or a part of one. Its files are held open, so it stays readable while it is pruned.
pub struct CheckpointReader {
    manifest: Manifest,
    folder: String,
    files: BTreeMap<String, Box<dyn FileReader>>,
    tensors: HashMap<String, usize>,
}

/// Lists the committed steps.
///
/// # Errors
/// If the volume fails. A missing folder of checkpoints is not an error.
pub fn list(volume: &dyn Volume) -> Result<Listing, CheckpointError> {
    let entries = match volume.list(CHECKPOINTS_DIR) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Listing::default()),
        listed => listed.map_err(volume_io(volume, "list", CHECKPOINTS_DIR))?,
    };
    let mut listing = Listing::default();
    for entry in entries {
        match paths::parse_step_dir_name(&entry.name).filter(|_| entry.is_dir) {
            Some(step) => listing.steps.push(step),
            None => listing.foreign.push(Warning {
                path: format!("{CHECKPOINTS_DIR}/{}", entry.name),
                reason: "is no checkpoint of this job and was left alone".into(),
            }),
        }
    }
    listing.steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(listing)
}

/// Opens the newest checkpoint that is intact at `level` and has no `known_damage` (which stages found while they
/// read). The volume is not changed: a damaged checkpoint is set aside once another one has been loaded, so that the
/// next start reports `NoneIntact` again.
///
/// # Errors
/// `NoneIntact` if there are checkpoints and none can be used; or if the volume fails.
pub fn open_newest(
    volume: &dyn Volume,
    level: VerifyLevel,
    known_damage: &[Damage],
) -> Result<NewestCheckpoint, CheckpointError> {
    let Listing { steps, foreign } = list(volume)?;
    let mut damage = Vec::new();
    for step in steps {
        if let Some(damaged) = known_damage.iter().find(|d| d.step == step) {
            damage.push(damaged.clone());
            continue;
        }
        match open_at(volume, step, level) {
            Ok(checkpoint) => return Ok(NewestCheckpoint { checkpoint: Some(checkpoint), damage, foreign }),
            Err(CheckpointError::Damaged(found)) => {
                if volume.list(&paths::checkpoint_path(step)).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                    return open_newest(volume, level, known_damage); // pruned since the listing: there is a newer one
                }
                damage.push(found);
            }
            Err(other) => return Err(other),
        }
    }
    match damage.is_empty() {
        true => Ok(NewestCheckpoint { checkpoint: None, damage, foreign }),
        false => Err(CheckpointError::NoneIntact { folder: volume.display(CHECKPOINTS_DIR), damage }),
    }
}

fn open_at(volume: &dyn Volume, step: u64, level: VerifyLevel) -> Result<CheckpointReader, CheckpointError> {
    let checkpoint = open(volume, step)?;
    if level == VerifyLevel::Contents {
        checkpoint.verify()?;
    }
    Ok(checkpoint)
}

/// Reads a checkpoint's manifest and verifies its hash; its files are not checked.
///
/// # Errors
/// `Damaged`, or if the volume fails.
pub fn read_manifest(volume: &dyn Volume, step: u64) -> Result<Manifest, CheckpointError> {
    let path = format!("{}/{MANIFEST_FILE}", paths::checkpoint_path(step));
    let bytes = read_file(volume, &path).map_err(|e| missing_as_damage(volume, step, &path, e))?;
    let damaged = |reason| CheckpointError::Damaged(Damage { step, file: path.clone(), reason });
    let manifest = Manifest::parse(&bytes).map_err(damaged)?;
    if manifest.step == step { Ok(manifest) } else { Err(damaged(format!("is of step {}", manifest.step))) }
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
    let reason = format!("has {size} bytes, and {} were written", entry.bytes);
    Err(CheckpointError::Damaged(Damage { step, file: path, reason }))
}

/// On NFS; elsewhere an open file stays readable.
const REMOVED_WHILE_OPEN: &str = "was removed while it was open";

/// A missing file is damage; other errors come from the volume.
fn missing_as_damage(volume: &dyn Volume, step: u64, path: &str, error: io::Error) -> CheckpointError {
    let reason = match error.kind() {
        ErrorKind::NotFound => "is missing",
        ErrorKind::StaleNetworkFileHandle => REMOVED_WHILE_OPEN,
        ErrorKind::IsADirectory => "is a folder",
        _ => return volume_io(volume, "read", path)(error),
    };
    CheckpointError::Damaged(Damage { step, file: path.to_owned(), reason: reason.into() })
}

/// Opens one checkpoint; its manifest and the size of every file are checked.
///
/// # Errors
/// `Damaged`, or if the volume fails.
pub fn open(volume: &dyn Volume, step: u64) -> Result<CheckpointReader, CheckpointError> {
    open_files(volume, step, None)
}

/// Opens of one checkpoint the files that hold the tensors `names`, whatever becomes of the others; their size is checked.
///
/// # Errors
/// As [`open`].
pub fn open_tensors(
    volume: &dyn Volume,
    step: u64,
    names: &HashSet<String>,
) -> Result<CheckpointReader, CheckpointError> {
    open_files(volume, step, Some(names))
}

/// Opens all files, or those of the tensors `names`.
fn open_files(
    volume: &dyn Volume,
    step: u64,
    names: Option<&HashSet<String>>,
) -> Result<CheckpointReader, CheckpointError> {
    let manifest = read_manifest(volume, step)?;
    let of_names = |names: &HashSet<String>| -> HashSet<&str> {
        manifest.tensors.iter().filter(|tensor| names.contains(&tensor.name)).map(|tensor| &*tensor.file).collect()
    };
    let needed = names.map(of_names);
    let is_needed = |file: &&FileEntry| needed.as_ref().is_none_or(|needed| needed.contains(&*file.name));
    let mut files = BTreeMap::new();
    for file in manifest.files.iter().filter(is_needed) {
        files.insert(file.name.clone(), open_file(volume, step, file)?);
    }
    let folder = volume.display(&paths::checkpoint_path(step));
    let tensors = manifest.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
    Ok(CheckpointReader { manifest, folder: folder.to_string_lossy().into_owned(), files, tensors })
}

impl CheckpointReader {
    /// Path of the checkpoint, for messages.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The entry of a tensor; `None` if there is no such tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name).and_then(|&at| self.manifest.tensors.get(at))
    }

    /// Reads one tensor's bytes, little-endian, into `buffer` of exactly that size.
    ///
    /// # Errors
    /// `Damaged` if they do not match their hash; or if the volume fails.
    pub fn read_into(&self, tensor: &TensorEntry, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        if buffer.len() as u64 != tensor.bytes {
            let reason = format!("{} has {} bytes, and {} were asked for", tensor.name, tensor.bytes, buffer.len());
            return Err(CheckpointError::Content { path: self.path(&tensor.file).into(), problem: reason });
        }
        self.read_range(&tensor.file, tensor.offset, buffer)?;
        if blake3::hash(buffer).to_hex().as_str() == tensor.blake3 {
            return Ok(());
        }
        Err(self.damage_error(&tensor.file, format!("holds other bytes for {} than were written", tensor.name)))
    }

    /// Reads one tensor's bytes into a new buffer.
    ///
    /// # Errors
    /// As [`CheckpointReader::read_into`].
    pub fn read(&self, tensor: &TensorEntry) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; tensor.bytes as usize];
        self.read_into(tensor, &mut bytes).map(|()| bytes)
    }

    /// Reads one of the small files; `None` if the checkpoint has no such file.
    ///
    /// # Errors
    /// As [`CheckpointReader::read_into`].
    pub fn read_small_file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(entry) = self.manifest.files.iter().find(|f| f.name == name) else { return Ok(None) };
        let mut bytes = vec![0; entry.bytes as usize];
        self.read_range(name, 0, &mut bytes)?;
        self.check_hash(entry, blake3::hash(&bytes)).map(|()| Some(bytes))
    }

    /// Verifies the hash of every file.
    ///
    /// # Errors
    /// `Damaged` names the first file that does not match its hash; or if the volume fails.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for entry in &self.manifest.files {
            let hash = hash_file(self.reader(&entry.name)?, entry.bytes, &mut |_| {});
            self.check_hash(entry, hash.map_err(|e| self.read_error(&entry.name, e))?)?;
        }
        Ok(())
    }

    fn check_hash(&self, entry: &FileEntry, hash: blake3::Hash) -> Result<(), CheckpointError> {
        if hash.to_hex().as_str() == entry.blake3 {
            return Ok(());
        }
        Err(self.damage_error(&entry.name, "holds other bytes than were written".into()))
    }

    fn read_range(&self, file: &str, offset: u64, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        self.reader(file)?.read_at(offset, buffer).map_err(|e| self.read_error(file, e))
    }

    fn reader(&self, file: &str) -> Result<&dyn FileReader, CheckpointError> {
        self.files.get(file).map(|reader| &**reader).ok_or_else(|| {
            self.damage_error(file, "is not open: it is not in the manifest, or was not asked for".into())
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

/// Hashes a file of `bytes` bytes; `on_read` gets the number of bytes of each read.
pub(crate) fn hash_file(reader: &dyn FileReader, bytes: u64, on_read: &mut dyn FnMut(u64)) -> io::Result<blake3::Hash> {
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
