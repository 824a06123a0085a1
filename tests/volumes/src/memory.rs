//! A volume in memory that tracks which contents and entries are durable.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stagecoach_checkpoint::{DirEntry, FileReader, FileWriter, Volume};

/// A volume in memory; clones share it. Open files survive renames and removals, as on Unix.
#[derive(Clone, Debug)]
pub struct MemoryVolume {
    table: Arc<Mutex<InodeTable>>,
}

/// What survives a power cut of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Nothing: entries and content as they were last synced.
    Lost,
    /// All entries, with the second half of unsynced content zeroed: a journal that runs ahead of the data.
    Kept,
    /// Either, chosen by this seed for each folder and file.
    Mixed(u64),
}

/// Inodes by number; those without a name are kept, for open files.
#[derive(Clone, Debug, Default)]
struct InodeTable {
    inodes: Vec<Inode>,
}

#[derive(Clone, Debug)]
enum Inode {
    File { current: Vec<u8>, durable: Vec<u8> },
    Dir { current: BTreeMap<String, usize>, durable: BTreeMap<String, usize> },
}

const ROOT: usize = 0;

impl Default for MemoryVolume {
    fn default() -> MemoryVolume {
        MemoryVolume { table: Arc::new(Mutex::new(InodeTable { inodes: vec![Inode::dir()] })) }
    }
}

impl MemoryVolume {
    /// An empty volume.
    pub fn new() -> MemoryVolume {
        MemoryVolume::default()
    }

    /// An independent copy, with the same current and durable content.
    pub fn deep_copy(&self) -> MemoryVolume {
        MemoryVolume { table: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Cuts the power: what was not synced is lost, as `loss` says.
    pub fn cut_power(&self, loss: PowerLoss) {
        for (number, node) in self.lock().inodes.iter_mut().enumerate() {
            let kept = match loss {
                PowerLoss::Lost => false,
                PowerLoss::Kept => true,
                PowerLoss::Mixed(seed) => (seed ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1,
            };
            match node {
                Inode::File { current, durable } if current != durable => {
                    if kept {
                        let half = current.len() / 2;
                        current[half..].fill(0);
                    } else {
                        current.clone_from(durable);
                    }
                    durable.clone_from(current);
                }
                Inode::File { .. } => {}
                Inode::Dir { current, durable } if kept => durable.clone_from(current),
                Inode::Dir { current, durable } => current.clone_from(durable),
            }
        }
    }

    /// Every file below `path`, sorted; empty if there is no such folder.
    pub fn files(&self, path: &str) -> Vec<String> {
        let mut files = Vec::new();
        for entry in self.list(path).unwrap_or_default() {
            let inner = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            match entry.is_dir {
                true => files.extend(self.files(&inner)),
                false => files.push(inner),
            }
        }
        files
    }

    /// Changes a file directly, bypassing the volume; false if it does not exist.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut table = self.lock();
        let Ok(number) = table.find(path) else { return false };
        match table.inodes.get_mut(number) {
            Some(Inode::File { current, durable }) => {
                change(current);
                durable.clone_from(current);
                true
            }
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, InodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inode {
    fn dir() -> Inode {
        Inode::Dir { current: BTreeMap::new(), durable: BTreeMap::new() }
    }
}

impl InodeTable {
    fn find(&self, path: &str) -> io::Result<usize> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |at, name| self.entries(at)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into()))
    }

    fn entries(&self, number: usize) -> io::Result<&BTreeMap<String, usize>> {
        match self.inodes.get(number) {
            Some(Inode::Dir { current, .. }) => Ok(current),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn parent_entries(&mut self, path: &str) -> io::Result<&mut BTreeMap<String, usize>> {
        let number = self.find(parent(path))?;
        match self.inodes.get_mut(number) {
            Some(Inode::Dir { current, .. }) => Ok(current),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, path: &str, node: Inode) -> io::Result<usize> {
        let number = self.inodes.len();
        let entries = self.parent_entries(path)?;
        if entries.contains_key(name(path)) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        entries.insert(name(path).to_owned(), number);
        self.inodes.push(node);
        Ok(number)
    }

    fn file(&mut self, number: usize) -> io::Result<(&mut Vec<u8>, &mut Vec<u8>)> {
        match self.inodes.get_mut(number) {
            Some(Inode::File { current, durable }) => Ok((current, durable)),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Volume for MemoryVolume {
    fn display(&self, path: &str) -> PathBuf {
        path.into()
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.lock().add(path, Inode::dir()).map(drop)
    }

    fn make_private_dir(&self, path: &str) -> io::Result<()> {
        self.make_dir(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let table = self.lock();
        let entries = table.entries(table.find(path)?)?;
        let is_dir = |number: &usize| matches!(table.inodes.get(*number), Some(Inode::Dir { .. }));
        Ok(entries.iter().map(|(name, number)| DirEntry { name: name.clone(), is_dir: is_dir(number) }).collect())
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let number = self.lock().add(path, Inode::File { current: Vec::new(), durable: Vec::new() })?;
        Ok(Box::new(OpenFile { volume: self.clone(), number }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let mut table = self.lock();
        let number = table.find(path)?;
        table.file(number)?;
        Ok(Box::new(OpenFile { volume: self.clone(), number }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut table = self.lock();
        let number = table.find(from)?;
        let is_dir = table.entries(number).is_ok();
        if let Some(&there) = table.parent_entries(to)?.get(name(to)) {
            match (is_dir, table.entries(there)) {
                (true, Ok(entries)) if !entries.is_empty() => return Err(ErrorKind::DirectoryNotEmpty.into()),
                (true, Err(e)) => return Err(e),
                (false, Ok(_)) => return Err(ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        table.parent_entries(from)?.remove(name(from));
        table.parent_entries(to)?.insert(name(to).to_owned(), number);
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let mut table = self.lock();
        let number = table.find(path)?;
        table.file(number)?;
        table.parent_entries(path)?.remove(name(path));
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut table = self.lock();
        let number = table.find(path)?;
        if !table.entries(number)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        table.parent_entries(path)?.remove(name(path));
        Ok(())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut table = self.lock();
        let number = table.find(path)?;
        match table.inodes.get_mut(number) {
            Some(Inode::Dir { current, durable }) => {
                durable.clone_from(current);
                Ok(())
            }
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }
}

struct OpenFile {
    volume: MemoryVolume,
    number: usize,
}

impl FileWriter for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.volume.lock().file(self.number).map(|(current, _)| current.extend_from_slice(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.lock().file(self.number).map(|(current, durable)| durable.clone_from(current))
    }
}

impl FileReader for OpenFile {
    fn size(&self) -> io::Result<u64> {
        self.volume.lock().file(self.number).map(|(current, _)| current.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut table = self.volume.lock();
        let (current, _) = table.file(self.number)?;
        let bytes = current.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
