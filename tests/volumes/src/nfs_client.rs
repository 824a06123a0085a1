//! The cache of names in a client of a network file system. The guarantees are the weakest that NFS allows: no entry
//! expires.

use std::collections::HashMap;
use std::io;

use crate::inodes::InodeTable;

/// The cache of a client. The result of a lookup, an inode or a missing name, stays in the cache until the client
/// changes the name, or lists the folder and finds the folder changed. In the second case, the client discards all
/// names of the folder.
#[derive(Debug, Default)]
pub(crate) struct LookupCache {
    names: HashMap<(usize, String), Option<usize>>,
    /// The change counter of each folder at the first lookup of a name in it, or at its last listing.
    changes: HashMap<usize, u64>,
}

impl LookupCache {
    /// Returns the inode of `name` in the folder `dir`.
    pub(crate) fn lookup(&mut self, table: &InodeTable, dir: usize, name: &str) -> io::Result<usize> {
        if let Some(known) = self.names.get(&(dir, name.to_owned())) {
            return known.ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        self.changes.entry(dir).or_insert(table.changes(dir));
        let answer = table.lookup(dir, name);
        match &answer {
            Ok(number) => drop(self.names.insert((dir, name.to_owned()), Some(*number))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => drop(self.names.insert((dir, name.to_owned()), None)),
            Err(_) => {}
        }
        answer
    }

    /// Opens a folder. For close-to-open consistency, the client asks the server whether the folder has changed.
    pub(crate) fn open_dir(&mut self, table: &InodeTable, dir: usize) {
        let now = table.changes(dir);
        if self.changes.insert(dir, now) != Some(now) {
            self.names.retain(|(parent, _), _| *parent != dir);
        }
    }

    /// Discards `name`, since the client changes it.
    pub(crate) fn forget(&mut self, dir: usize, name: &str) {
        self.names.remove(&(dir, name.to_owned()));
    }
}
