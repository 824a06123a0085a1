//! A volume in memory that knows which of its content and entries are durable.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::volume::{Entry, FileReader, FileWriter, Volume, parent};

/// A volume in memory; clones share it. What is open stays open through renames and removals, as on Unix.
#[derive(Clone, Debug)]
pub struct MemoryVolume {
    tree: Arc<Mutex<Tree>>,
}

/// What a power cut leaves of that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Nothing: entries and content as they were last synced.
    Lost,
    /// All entries, with the second half of unsynced content zeroed: a journal that runs ahead of the data.
    Kept,
    /// Either, for each folder and file apart, by this seed.
    Mixed(u64),
}

/// Nodes by number; what nothing refers to any more stays for those who have it open.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
enum Node {
    File { live: Vec<u8>, durable: Vec<u8> },
    Dir { live: BTreeMap<String, usize>, durable: BTreeMap<String, usize> },
}

const ROOT: usize = 0;

impl Default for MemoryVolume {
    fn default() -> MemoryVolume {
        MemoryVolume { tree: Arc::new(Mutex::new(Tree { nodes: vec![Node::dir()] })) }
    }
}

impl MemoryVolume {
    /// An empty one.
    pub fn new() -> MemoryVolume {
        MemoryVolume::default()
    }

    /// Another one with the same content, durable or not.
    pub fn copy(&self) -> MemoryVolume {
        MemoryVolume { tree: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Cuts the power: what was not synced is gone, as `loss` says.
    pub fn cut_power(&self, loss: PowerLoss) {
        for (number, node) in self.lock().nodes.iter_mut().enumerate() {
            let kept = match loss {
                PowerLoss::Lost => false,
                PowerLoss::Kept => true,
                PowerLoss::Mixed(seed) => (seed ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1,
            };
            match node {
                Node::File { live, durable } if live != durable => {
                    if kept {
                        let half = live.len() / 2;
                        live[half..].fill(0);
                    } else {
                        live.clone_from(durable);
                    }
                    durable.clone_from(live);
                }
                Node::File { .. } => {}
                Node::Dir { live, durable } if kept => durable.clone_from(live),
                Node::Dir { live, durable } => live.clone_from(durable),
            }
        }
    }

    /// Every file below `path`, sorted; none if there is no such folder.
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

    /// Changes a file behind everybody's back; false if there is none.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut tree = self.lock();
        let Ok(number) = tree.find(path) else { return false };
        match tree.nodes.get_mut(number) {
            Some(Node::File { live, durable }) => {
                change(live);
                durable.clone_from(live);
                true
            }
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn dir() -> Node {
        Node::Dir { live: BTreeMap::new(), durable: BTreeMap::new() }
    }
}

impl Tree {
    fn find(&self, path: &str) -> io::Result<usize> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |at, name| self.entries(at)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into()))
    }

    fn entries(&self, number: usize) -> io::Result<&BTreeMap<String, usize>> {
        match self.nodes.get(number) {
            Some(Node::Dir { live, .. }) => Ok(live),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn parent_entries(&mut self, path: &str) -> io::Result<&mut BTreeMap<String, usize>> {
        let number = self.find(parent(path))?;
        match self.nodes.get_mut(number) {
            Some(Node::Dir { live, .. }) => Ok(live),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, path: &str, node: Node) -> io::Result<usize> {
        let number = self.nodes.len();
        let entries = self.parent_entries(path)?;
        if entries.contains_key(name(path)) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        entries.insert(name(path).to_owned(), number);
        self.nodes.push(node);
        Ok(number)
    }

    fn file(&mut self, number: usize) -> io::Result<(&mut Vec<u8>, &mut Vec<u8>)> {
        match self.nodes.get_mut(number) {
            Some(Node::File { live, durable }) => Ok((live, durable)),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Volume for MemoryVolume {
    fn display(&self, path: &str) -> PathBuf {
        path.into()
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.lock().add(path, Node::dir()).map(drop)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        let tree = self.lock();
        let entries = tree.entries(tree.find(path)?)?;
        let is_dir = |number: &usize| matches!(tree.nodes.get(*number), Some(Node::Dir { .. }));
        Ok(entries.iter().map(|(name, number)| Entry { name: name.clone(), is_dir: is_dir(number) }).collect())
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let number = self.lock().add(path, Node::File { live: Vec::new(), durable: Vec::new() })?;
        Ok(Box::new(OpenFile { volume: self.clone(), number }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let mut tree = self.lock();
        let number = tree.find(path)?;
        tree.file(number)?;
        Ok(Box::new(OpenFile { volume: self.clone(), number }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.lock();
        let number = tree.find(from)?;
        let is_dir = tree.entries(number).is_ok();
        if let Some(&there) = tree.parent_entries(to)?.get(name(to)) {
            match (is_dir, tree.entries(there)) {
                (true, Ok(entries)) if !entries.is_empty() => return Err(ErrorKind::DirectoryNotEmpty.into()),
                (true, Err(e)) => return Err(e),
                (false, Ok(_)) => return Err(ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        tree.parent_entries(from)?.remove(name(from));
        tree.parent_entries(to)?.insert(name(to).to_owned(), number);
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let mut tree = self.lock();
        let number = tree.find(path)?;
        tree.file(number)?;
        tree.parent_entries(path)?.remove(name(path));
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut tree = self.lock();
        let number = tree.find(path)?;
        if !tree.entries(number)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        tree.parent_entries(path)?.remove(name(path));
        Ok(())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut tree = self.lock();
        let number = tree.find(path)?;
        match tree.nodes.get_mut(number) {
            Some(Node::Dir { live, durable }) => {
                durable.clone_from(live);
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
        self.volume.lock().file(self.number).map(|(live, _)| live.extend_from_slice(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.lock().file(self.number).map(|(live, durable)| durable.clone_from(live))
    }
}

impl FileReader for OpenFile {
    fn size(&self) -> io::Result<u64> {
        self.volume.lock().file(self.number).map(|(live, _)| live.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut tree = self.volume.lock();
        let (live, _) = tree.file(self.number)?;
        let bytes = live.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
