//! The names that a client of a network file system caches: the worst that NFS allows, since no entry expires.

use std::collections::HashMap;
use std::io;

use crate::inodes::InodeTable;

/// The client's cache. A name that it has looked up stays what it was, or missing, until the client changes it, or
/// lists its folder and finds that changed: then it forgets all names of that folder.
#[derive(Debug, Default)]
pub(crate) struct LookupCache {
    names: HashMap<(usize, String), Option<usize>>,
    /// The folders' change counters when their first name was looked up, or when they were listed.
    changes: HashMap<usize, u64>,
}

impl LookupCache {
    /// The inode of `name` in the folder `dir`.
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

    /// The client opens the folder: close-to-open consistency makes it ask the server whether it has changed.
    pub(crate) fn open_dir(&mut self, table: &InodeTable, dir: usize) {
        let now = table.changes(dir);
        if self.changes.insert(dir, now) != Some(now) {
            self.names.retain(|(parent, _), _| *parent != dir);
        }
    }

    /// The client has changed `name` itself.
    pub(crate) fn forget(&mut self, dir: usize, name: &str) {
        self.names.remove(&(dir, name.to_owned()));
    }
}
