//! The inodes of a volume by number, each with its current and its durable state. Calls on a removed folder fail, as
//! with an NFS server.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, ErrorKind};

pub(crate) const ROOT: usize = 0;

/// The part of the unsynced data that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// No unsynced data survives: entries and content are those of the last sync.
    Lost,
    /// All entries survive, with the second half of unsynced content zeroed. A journaling file system does this if it
    /// writes its journal before the data.
    Kept,
    /// Each folder and file loses or keeps its unsynced data, chosen at random with this seed.
    Mixed(u64),
}

/// All inodes by number. An inode without a name stays in the table, since the file may be open.
#[derive(Clone, Debug)]
pub(crate) struct InodeTable {
    inodes: Vec<Inode>,
    /// The numbers of the inodes that have lost all their names.
    removed: HashSet<usize>,
}

#[derive(Clone, Debug)]
enum Inode {
    File { current: Vec<u8>, durable: Vec<u8> },
    Dir { current: Entries, durable: Entries, changes: u64 },
}

pub(crate) type Entries = BTreeMap<String, usize>;

impl Default for InodeTable {
    fn default() -> InodeTable {
        InodeTable { inodes: vec![Inode::dir()], removed: HashSet::new() }
    }
}

impl Inode {
    fn dir() -> Inode {
        Inode::Dir { current: Entries::new(), durable: Entries::new(), changes: 0 }
    }
}

impl InodeTable {
    pub(crate) fn lookup(&self, dir: usize, name: &str) -> io::Result<usize> {
        self.entries(dir)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(crate) fn entries(&self, dir: usize) -> io::Result<&Entries> {
        match self.inodes.get(dir) {
            Some(Inode::Dir { .. }) if self.is_removed(dir) => Err(ErrorKind::StaleNetworkFileHandle.into()),
            Some(Inode::Dir { current, .. }) => Ok(current),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(crate) fn is_dir(&self, number: usize) -> bool {
        matches!(self.inodes.get(number), Some(Inode::Dir { .. }))
    }

    pub(crate) fn is_removed(&self, number: usize) -> bool {
        self.removed.contains(&number)
    }

    /// Returns the number of changes to the folder's entries.
    pub(crate) fn changes(&self, dir: usize) -> u64 {
        match self.inodes.get(dir) {
            Some(Inode::Dir { changes, .. }) => *changes,
            _ => 0,
        }
    }

    fn change(&mut self, dir: usize) -> io::Result<&mut Entries> {
        self.entries(dir)?;
        match self.inodes.get_mut(dir) {
            Some(Inode::Dir { current, changes, .. }) => {
                *changes += 1;
                Ok(current)
            }
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(crate) fn add_dir(&mut self, dir: usize, name: &str) -> io::Result<usize> {
        self.add(dir, name, Inode::dir())
    }

    pub(crate) fn add_file(&mut self, dir: usize, name: &str) -> io::Result<usize> {
        self.add(dir, name, Inode::File { current: Vec::new(), durable: Vec::new() })
    }

    fn add(&mut self, dir: usize, name: &str, node: Inode) -> io::Result<usize> {
        let number = self.inodes.len();
        if self.entries(dir)?.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.change(dir)?.insert(name.to_owned(), number);
        self.inodes.push(node);
        Ok(number)
    }

    pub(crate) fn rename(&mut self, from: (usize, &str), to: (usize, &str)) -> io::Result<()> {
        let number = self.lookup(from.0, from.1)?;
        let is_dir = self.is_dir(number);
        if let Some(&there) = self.entries(to.0)?.get(to.1) {
            match (is_dir, self.entries(there)) {
                (true, Ok(entries)) if !entries.is_empty() => return Err(ErrorKind::DirectoryNotEmpty.into()),
                (true, Err(e)) => return Err(e),
                (false, Ok(_)) => return Err(ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        self.change(from.0)?.remove(from.1);
        let replaced = self.change(to.0)?.insert(to.1.to_owned(), number);
        if let Some(replaced) = replaced {
            self.unlinked(replaced);
        }
        Ok(())
    }

    pub(crate) fn remove_file(&mut self, dir: usize, name: &str) -> io::Result<()> {
        let number = self.lookup(dir, name)?;
        self.file(number)?;
        self.change(dir)?.remove(name);
        self.unlinked(number);
        Ok(())
    }

    pub(crate) fn remove_dir(&mut self, dir: usize, name: &str) -> io::Result<()> {
        let number = self.lookup(dir, name)?;
        if !self.entries(number)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        self.change(dir)?.remove(name);
        self.unlinked(number);
        Ok(())
    }

    /// Records that an inode has lost a name. After [`PowerLoss::Mixed`], the inode may have another name, and then
    /// does not count as removed.
    fn unlinked(&mut self, number: usize) {
        let has_it =
            |node: &Inode| matches!(node, Inode::Dir { current, .. } if current.values().any(|n| *n == number));
        if !self.inodes.iter().any(has_it) {
            self.removed.insert(number);
        }
    }

    pub(crate) fn sync_dir(&mut self, dir: usize) -> io::Result<()> {
        self.entries(dir)?;
        match self.inodes.get_mut(dir) {
            Some(Inode::Dir { current, durable, .. }) => {
                durable.clone_from(current);
                Ok(())
            }
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    /// Returns a file's current content and its durable content.
    pub(crate) fn file(&mut self, number: usize) -> io::Result<(&mut Vec<u8>, &mut Vec<u8>)> {
        match self.inodes.get_mut(number) {
            Some(Inode::File { current, durable }) => Ok((current, durable)),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(crate) fn cut_power(&mut self, loss: PowerLoss) {
        for (number, node) in self.inodes.iter_mut().enumerate() {
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
                Inode::Dir { current, durable, .. } if kept => durable.clone_from(current),
                Inode::Dir { current, durable, changes } => {
                    current.clone_from(durable);
                    *changes += 1;
                }
            }
        }
        // no inode counts as removed after a power cut: an inode whose removal was lost has its name again, and an
        // inode without a name can't be reached
        self.removed.clear();
    }
}
