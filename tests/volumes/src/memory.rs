//! A volume in memory that tracks which content and entries are durable. A test uses it directly or through clients of
//! a network file system.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stagecoach_checkpoint::{DirEntry, FileReader, FileWriter, Volume};

use crate::inodes::{InodeTable, PowerLoss, ROOT};
use crate::nfs_client::LookupCache;

/// A volume in memory. Clones share its content. Open files survive renames and removals, as on Unix.
#[derive(Clone, Debug, Default)]
pub struct MemoryVolume {
    table: Arc<Mutex<InodeTable>>,
    /// The names that the client of a network file system caches, or `None` without such a client.
    cache: Option<Arc<Mutex<LookupCache>>>,
}

impl MemoryVolume {
    /// Returns an empty volume.
    pub fn new() -> MemoryVolume {
        MemoryVolume::default()
    }

    /// Returns an independent copy with the same current and durable content.
    pub fn deep_copy(&self) -> MemoryVolume {
        MemoryVolume { table: Arc::new(Mutex::new(self.lock().clone())), cache: None }
    }

    /// Returns the same volume through a new client of a network file system, which guarantees only close-to-open
    /// consistency. The client caches the result of every lookup of a name. It discards the names of a folder when it
    /// lists this folder and finds the folder changed. Operations use the handles of folders, even after a rename.
    /// Other clients see written data after the writing client has synced or closed the file.
    pub fn nfs_client(&self) -> MemoryVolume {
        MemoryVolume { table: self.table.clone(), cache: Some(Arc::default()) }
    }

    /// Cuts the power. `loss` decides which unsynced data survives.
    pub fn cut_power(&self, loss: PowerLoss) {
        self.lock().cut_power(loss);
    }

    /// Returns the paths of all files below `path`, in the order of the names in each folder. The result is empty if
    /// the folder does not exist.
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

    /// Changes a file directly, without a call on the volume. The change is durable at once. Returns false if the file
    /// does not exist.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut table = self.lock();
        let Ok(number) = self.find(&table, path) else { return false };
        let Ok((current, durable)) = table.file(number) else { return false };
        change(current);
        durable.clone_from(current);
        true
    }

    fn lock(&self) -> MutexGuard<'_, InodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call. If the call fails because of a stale handle, a client discards its cache and repeats the call
    /// once, as Linux does.
    fn act<T>(&self, call: impl Fn(&mut InodeTable) -> io::Result<T>) -> io::Result<T> {
        let mut table = self.lock();
        let answer = call(&mut table);
        match (&answer, self.cache()) {
            (Err(e), Some(mut cache)) if e.kind() == ErrorKind::StaleNetworkFileHandle => {
                *cache = LookupCache::default()
            }
            _ => return answer,
        }
        call(&mut table)
    }

    fn cache(&self) -> Option<MutexGuard<'_, LookupCache>> {
        Some(self.cache.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, table: &InodeTable, path: &str) -> io::Result<usize> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |at, name| match self.cache() {
            Some(mut cache) => cache.lookup(table, at, name),
            None => table.lookup(at, name),
        })
    }

    /// Returns the handle of the parent folder, and the name in this folder, for a call that goes to the server. An NFS
    /// client discards its cached lookup of this name.
    fn find_parent<'a>(&self, table: &InodeTable, path: &'a str) -> io::Result<(usize, &'a str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(table, parent)?;
        if let Some(mut cache) = self.cache() {
            cache.forget(dir, name);
        }
        Ok((dir, name))
    }
}

impl Volume for MemoryVolume {
    fn display(&self, path: &str) -> PathBuf {
        path.into()
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.act(|table| {
            let (dir, name) = self.find_parent(table, path)?;
            table.add_dir(dir, name).map(drop)
        })
    }

    fn make_private_dir(&self, path: &str) -> io::Result<()> {
        self.make_dir(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.act(|table| {
            let dir = self.find(table, path)?;
            if let Some(mut cache) = self.cache() {
                cache.open_dir(table, dir);
            }
            let entry =
                |(name, number): (&String, &usize)| DirEntry { name: name.clone(), is_dir: table.is_dir(*number) };
            Ok(table.entries(dir)?.iter().map(entry).collect())
        })
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let number = self.act(|table| {
            let (dir, name) = self.find_parent(table, path)?;
            table.add_file(dir, name)
        })?;
        Ok(Box::new(OpenFile { volume: self.clone(), number, unsent: Vec::new() }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let number = self.act(|table| {
            // an open looks up the name on the server, with the handle of the folder
            let (dir, name) = self.find_parent(table, path)?;
            let number = table.lookup(dir, name)?;
            table.file(number).map(|_| number)
        })?;
        Ok(Box::new(OpenFile { volume: self.clone(), number, unsent: Vec::new() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.act(|table| {
            // a client does not send a rename of a name that it has cached as missing
            self.find(table, from)?;
            let (from, to) = (self.find_parent(table, from)?, self.find_parent(table, to)?);
            table.rename(from, to)
        })
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.act(|table| {
            let (dir, name) = self.find_parent(table, path)?;
            table.remove_file(dir, name)
        })
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.act(|table| {
            let (dir, name) = self.find_parent(table, path)?;
            table.remove_dir(dir, name)
        })
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.act(|table| {
            let dir = self.find(table, path)?;
            table.sync_dir(dir)
        })
    }
}

struct OpenFile {
    volume: MemoryVolume,
    number: usize,
    /// The written data that an NFS client has not yet sent to the server.
    unsent: Vec<u8>,
}

impl OpenFile {
    /// Returns the table of inodes. For an NFS client, returns the error of a stale handle if the file was removed.
    fn table(&self) -> io::Result<MutexGuard<'_, InodeTable>> {
        let table = self.volume.lock();
        match self.volume.cache.is_some() && table.is_removed(self.number) {
            true => Err(ErrorKind::StaleNetworkFileHandle.into()),
            false => Ok(table),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        self.table()?.file(self.number).map(|(current, _)| current.extend(unsent))
    }
}

impl FileWriter for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.unsent.extend_from_slice(bytes);
        if self.volume.cache.is_some() { Ok(()) } else { self.send() }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.send()?;
        self.table()?.file(self.number).map(|(current, durable)| durable.clone_from(current))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let _ = self.send();
    }
}

impl FileReader for OpenFile {
    fn size(&self) -> io::Result<u64> {
        self.table()?.file(self.number).map(|(current, _)| current.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut table = self.table()?;
        let (current, _) = table.file(self.number)?;
        let bytes = current.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
