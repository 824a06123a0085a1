//! Finding the newest intact checkpoint, and reading from it: every byte that is used is proven by its hash.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};

use crate::error::{CheckpointError, Damage, Warning, io as failed, on};
use crate::layout::{self, CHECKPOINTS, MANIFEST};
use crate::manifest::{FileEntry, Manifest, TensorEntry};
use crate::volume::{FileReader, Volume};

/// Bytes read and hashed at once.
const PIECE: usize = 1 << 20;

/// What is in `checkpoints/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Committed steps, newest first. Nothing is known yet about their content.
    pub steps: Vec<u64>,
    /// What isn't ours, and is left alone.
    pub foreign: Vec<Warning>,
}

/// How much of a checkpoint is read before it counts as intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The manifest, and that every file is there in its size. Damage inside shows when a tensor is read.
    Sizes,
    /// Every byte of every file.
    Contents,
}

/// The newest intact checkpoint, and what was passed over.
#[derive(Debug)]
pub struct Found {
    /// None if there is no checkpoint at all.
    pub loaded: Option<Loaded>,
    /// Newer ones that can't be used: for [`crate::set_aside`].
    pub damage: Vec<Damage>,
    /// What isn't ours, and is left alone.
    pub foreign: Vec<Warning>,
}

/// An open checkpoint. All its files are held open, so pruning it meanwhile takes nothing from its reader.
pub struct Loaded {
    manifest: Manifest,
    folder: String,
    files: BTreeMap<String, Box<dyn FileReader>>,
    tensors: HashMap<String, usize>,
}

/// The committed steps.
///
/// # Errors
/// If the volume refuses. No folder of checkpoints is no error.
pub fn list(volume: &dyn Volume) -> Result<Listing, CheckpointError> {
    let entries = match volume.list(CHECKPOINTS) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Listing::default()),
        listed => listed.map_err(on(volume, "list", CHECKPOINTS))?,
    };
    let mut listing = Listing::default();
    for entry in entries {
        match layout::step_of(&entry.name).filter(|_| entry.is_dir) {
            Some(step) => listing.steps.push(step),
            None => listing.foreign.push(Warning {
                path: format!("{CHECKPOINTS}/{}", entry.name),
                reason: "is no checkpoint of this job and was left alone".into(),
            }),
        }
    }
    listing.steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(listing)
}

/// Opens the newest checkpoint that is intact, as far as `depth` looks, and that no `known` damage speaks against (what
/// stages found while they read). Nothing on the volume is changed: a checkpoint is set aside once another has been
/// loaded, so that "none is intact" stays true, and is said again, on the next start.
///
/// # Errors
/// `NoneIntact` if there are checkpoints and none can be used; or if the volume refuses.
pub fn newest(volume: &dyn Volume, depth: Depth, known: &[Damage]) -> Result<Found, CheckpointError> {
    let Listing { steps, foreign } = list(volume)?;
    let mut damage = Vec::new();
    for step in steps {
        if let Some(told) = known.iter().find(|d| d.step == step) {
            damage.push(told.clone());
            continue;
        }
        match open_at(volume, step, depth) {
            Ok(loaded) => return Ok(Found { loaded: Some(loaded), damage, foreign }),
            Err(CheckpointError::Damaged(found)) => {
                if volume.list(&layout::checkpoint(step)).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                    return newest(volume, depth, known); // pruned since we listed: there is a newer one now
                }
                damage.push(found);
            }
            Err(other) => return Err(other),
        }
    }
    match damage.is_empty() {
        true => Ok(Found { loaded: None, damage, foreign }),
        false => Err(CheckpointError::NoneIntact { folder: volume.display(CHECKPOINTS), damage }),
    }
}

fn open_at(volume: &dyn Volume, step: u64, depth: Depth) -> Result<Loaded, CheckpointError> {
    let loaded = open(volume, step)?;
    if depth == Depth::Contents {
        loaded.verify()?;
    }
    Ok(loaded)
}

/// A checkpoint's description, proven by its own hash; its files are not looked at.
///
/// # Errors
/// `Damaged`, or if the volume refuses.
pub fn manifest(volume: &dyn Volume, step: u64) -> Result<Manifest, CheckpointError> {
    let path = format!("{}/{MANIFEST}", layout::checkpoint(step));
    let bytes = read_file(volume, &path).map_err(|e| refused(volume, step, &path, e))?;
    let damaged = |reason| CheckpointError::Damaged(Damage { step, file: path.clone(), reason });
    let manifest = Manifest::parse(&bytes).map_err(damaged)?;
    if manifest.step == step { Ok(manifest) } else { Err(damaged(format!("is of step {}", manifest.step))) }
}

/// Opens a file of a checkpoint, after a look at its size.
pub(crate) fn open_file(
    volume: &dyn Volume,
    step: u64,
    entry: &FileEntry,
) -> Result<Box<dyn FileReader>, CheckpointError> {
    let path = format!("{}/{}", layout::checkpoint(step), entry.name);
    let reader = volume.open(&path).map_err(|e| refused(volume, step, &path, e))?;
    let size = reader.size().map_err(|e| refused(volume, step, &path, e))?;
    if size == entry.bytes {
        return Ok(reader);
    }
    let reason = format!("has {size} bytes, and {} were written", entry.bytes);
    Err(CheckpointError::Damaged(Damage { step, file: path, reason }))
}

/// What isn't there is damage; the rest is the volume's.
fn refused(volume: &dyn Volume, step: u64, path: &str, error: io::Error) -> CheckpointError {
    let reason = match error.kind() {
        ErrorKind::NotFound => "is missing",
        ErrorKind::IsADirectory => "is a folder",
        _ => return on(volume, "read", path)(error),
    };
    CheckpointError::Damaged(Damage { step, file: path.to_owned(), reason: reason.into() })
}

/// Opens one checkpoint: its manifest is checked, and every file is there in its size.
///
/// # Errors
/// `Damaged`, or if the volume refuses.
pub fn open(volume: &dyn Volume, step: u64) -> Result<Loaded, CheckpointError> {
    let manifest = manifest(volume, step)?;
    let mut files = BTreeMap::new();
    for file in &manifest.files {
        files.insert(file.name.clone(), open_file(volume, step, file)?);
    }
    let folder = volume.display(&layout::checkpoint(step));
    let tensors = manifest.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
    Ok(Loaded { manifest, folder: folder.to_string_lossy().into_owned(), files, tensors })
}

impl Loaded {
    /// Where it is, for messages.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Its description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where a tensor is and what it is like; none if there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name).and_then(|&at| self.manifest.tensors.get(at))
    }

    /// Reads one tensor's bytes, little-endian, and nothing else of its file, into `buffer` of its exact size.
    ///
    /// # Errors
    /// `Damaged` if they are not what was written; or if the volume refuses.
    pub fn read_into(&self, tensor: &TensorEntry, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        if buffer.len() as u64 != tensor.bytes {
            let reason = format!("{} has {} bytes, and {} were asked for", tensor.name, tensor.bytes, buffer.len());
            return Err(CheckpointError::Content { path: self.path(&tensor.file).into(), problem: reason });
        }
        self.read_range(&tensor.file, tensor.offset, buffer)?;
        if blake3::hash(buffer).to_hex().as_str() == tensor.blake3 {
            return Ok(());
        }
        Err(self.damaged(&tensor.file, format!("holds other bytes for {} than were written", tensor.name)))
    }

    /// The same, into memory of its own.
    ///
    /// # Errors
    /// As [`Loaded::read_into`].
    pub fn read(&self, tensor: &TensorEntry) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; tensor.bytes as usize];
        self.read_into(tensor, &mut bytes).map(|()| bytes)
    }

    /// One of the small files, whole; none if the checkpoint has none of that name.
    ///
    /// # Errors
    /// As [`Loaded::read_into`].
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(entry) = self.manifest.files.iter().find(|f| f.name == name) else { return Ok(None) };
        let mut bytes = vec![0; entry.bytes as usize];
        self.read_range(name, 0, &mut bytes)?;
        self.matches(entry, blake3::hash(&bytes)).map(|()| Some(bytes))
    }

    /// Reads every byte of every file.
    ///
    /// # Errors
    /// `Damaged` names the first file that isn't what was written; or if the volume refuses.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for entry in &self.manifest.files {
            let hash = hash(self.reader(&entry.name)?, entry.bytes, &mut |_| {});
            self.matches(entry, hash.map_err(|e| self.unread(&entry.name, e))?)?;
        }
        Ok(())
    }

    fn matches(&self, entry: &FileEntry, hash: blake3::Hash) -> Result<(), CheckpointError> {
        if hash.to_hex().as_str() == entry.blake3 {
            return Ok(());
        }
        Err(self.damaged(&entry.name, "holds other bytes than were written".into()))
    }

    fn read_range(&self, file: &str, offset: u64, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        self.reader(file)?.read_at(offset, buffer).map_err(|e| self.unread(file, e))
    }

    fn reader(&self, file: &str) -> Result<&dyn FileReader, CheckpointError> {
        self.files.get(file).map(|reader| &**reader).ok_or_else(|| self.damaged(file, "is not in the manifest".into()))
    }

    fn unread(&self, file: &str, error: io::Error) -> CheckpointError {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.damaged(file, "has become shorter".into()),
            _ => failed("read", self.path(file).as_ref())(error),
        }
    }

    fn damaged(&self, file: &str, reason: String) -> CheckpointError {
        let step = self.manifest.step;
        CheckpointError::Damaged(Damage { step, file: format!("{}/{file}", layout::checkpoint(step)), reason })
    }

    fn path(&self, file: &str) -> String {
        format!("{}/{file}", self.folder)
    }
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("folder", &self.folder)
            .field("step", &self.manifest.step)
            .finish_non_exhaustive()
    }
}

/// A small file's content.
pub(crate) fn read_file(volume: &dyn Volume, path: &str) -> io::Result<Vec<u8>> {
    let reader = volume.open(path)?;
    let mut bytes = vec![0; reader.size()? as usize];
    reader.read_at(0, &mut bytes).map(|()| bytes)
}

/// The hash of a file of `bytes` bytes; `read` hears how many more are read.
pub(crate) fn hash(reader: &dyn FileReader, bytes: u64, read: &mut dyn FnMut(u64)) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; PIECE.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let piece = &mut buffer[..PIECE.min((bytes - at) as usize)];
        reader.read_at(at, piece)?;
        hasher.update(piece);
        at += piece.len() as u64;
        read(piece.len() as u64);
    }
    Ok(hasher.finalize())
}
