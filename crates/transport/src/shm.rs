//! A ring buffer in memory that two processes on one host map. The writer copies a payload into the ring and announces
//! it on the stream. The reader copies the payload out of the ring and returns the space on the same stream. Neither
//! process polls: both block in `read`.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::process::geteuid;

use super::LinkId;
use super::stream::LinkStream;

/// The folder of POSIX shared memory on Linux.
const FOLDER: &str = "/dev/shm";

/// The prefix of the names of rings.
const PREFIX: &str = "stagecoach-";

/// The permissions of a ring's file: only its owner has access.
const FILE_MODE: u32 = 0o600;

/// A mapping of the first bytes of a file. Another process maps the same bytes.
#[derive(Debug)]
struct Mapping(MmapRaw);

impl Mapping {
    fn new(file: &File, bytes: usize) -> io::Result<Mapping> {
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        MmapOptions::new().len(bytes).map_raw(file).map(Mapping)
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns the offsets and lengths of the two segments that hold `length` bytes from position `at`. Positions count
    /// all bytes since the creation of the ring. The second segment is not empty if the bytes continue at the start of
    /// the ring.
    fn segments(&self, at: u64, length: usize) -> [(usize, usize); 2] {
        let offset = (at % self.bytes() as u64) as usize;
        let first = length.min(self.bytes() - offset);
        [(offset, first), (0, length - first)]
    }
}

/// The identity of a ring. Both ends derive the ring's file name and mark (a hash in the file) from the identity, so
/// that no greeting can name another file and no other ring can be mistaken for this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingIdentity<'a> {
    pub(super) group: &'a str,
    pub(super) link: LinkId,
    /// A text that distinguishes the ring from all other rings of this link.
    pub(super) nonce: &'a str,
    /// The capacity of the ring in bytes, without the mark.
    pub(super) bytes: usize,
}

/// The size of the mark in bytes. The mark follows the mapped part of a ring's file.
const MARK_BYTES: usize = 32;

impl RingIdentity<'_> {
    fn mark(&self) -> [u8; MARK_BYTES] {
        let RingIdentity { group, link, nonce, bytes } = self;
        blake3::hash(format!("{group}\n{link}\n{nonce}\n{bytes}").as_bytes()).into()
    }

    /// Returns the path of the ring's file, which exists as long as the ring has a name.
    pub(super) fn path(&self) -> PathBuf {
        let group = blake3::hash(self.group.as_bytes()).to_hex();
        let ring = blake3::hash(&self.mark()).to_hex();
        Path::new(FOLDER).join(format!("{PREFIX}{}-{}", &group[..16], &ring[..32]))
    }

    fn file_bytes(&self) -> u64 {
        (self.bytes + MARK_BYTES) as u64
    }
}

/// The file name of a ring. Dropping this value removes the file.
#[derive(Debug)]
struct RingName(PathBuf);

impl Drop for RingName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes the ring files of killed processes of this user. No process holds the lock of such a file.
pub(super) fn remove_abandoned() -> io::Result<()> {
    for entry in std::fs::read_dir(FOLDER)? {
        let path = entry?.path();
        if path.file_name().is_none_or(|name| !name.to_string_lossy().starts_with(PREFIX)) {
            continue;
        }
        // the call fails if the file has been removed, or belongs to another user
        let Ok(file) = open_existing(&path) else { continue };
        if file.metadata()?.uid() == geteuid().as_raw()
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            drop(RingName(path));
        }
    }
    Ok(())
}

/// Opens a ring by its name. The call does not block and does not follow a symbolic link, whatever the type of the
/// file.
fn open_existing(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// A ring that exists under a name until the peer has mapped it.
#[derive(Debug)]
pub(super) struct NamedRing {
    mapping: Mapping,
    name: RingName,
    /// The file of the ring, locked to show that the process is alive.
    _file: File,
}

impl NamedRing {
    /// Creates the ring of this identity.
    pub(crate) fn create(ring: &RingIdentity) -> io::Result<NamedRing> {
        let path = ring.path();
        let (file, name) = loop {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(&path)?;
            let name = RingName(path.clone());
            flock(&file, FlockOperation::LockExclusive)?;
            // another process may have found the file before it was locked, and removed it as abandoned; the loop then
            // tries again
            if file.metadata()?.nlink() == 1 {
                break (file, name);
            }
        };
        file.set_permissions(Permissions::from_mode(FILE_MODE))?; // the umask does not affect this call
        // the memory is allocated here, so that a full /dev/shm is an error of this call and not a later SIGBUS
        fallocate(&file, FallocateFlags::empty(), 0, ring.file_bytes())?;
        file.write_all_at(&ring.mark(), ring.bytes as u64)?;
        Ok(NamedRing { mapping: Mapping::new(&file, ring.bytes)?, name, _file: file })
    }

    /// Removes the name. After this call, the memory exists only as long as the two mappings, so that a killed process
    /// leaves no file.
    pub(super) fn into_writer(self) -> RingWriter {
        drop(self.name);
        RingWriter { ring: self.mapping, written: 0, released: 0 }
    }
}

/// The sending half of a ring.
#[derive(Debug)]
pub(super) struct RingWriter {
    ring: Mapping,
    written: u64,
    released: u64,
}

impl RingWriter {
    /// Copies `payload` into the ring. First waits until the reader has returned enough space.
    pub(super) fn put(&mut self, payload: &[u8], stream: &mut LinkStream) -> io::Result<()> {
        if payload.len() > self.ring.bytes() {
            return Err(io::Error::other(format!(
                "a payload of {} bytes does not fit into the link's ring of {} bytes in shared memory",
                payload.len(),
                self.ring.bytes()
            )));
        }
        while self.written + payload.len() as u64 - self.released > self.ring.bytes() as u64 {
            let mut credit = [0; 8];
            stream.read_exact(&mut credit)?;
            self.released += u64::from_le_bytes(credit);
        }
        let mut rest = payload;
        for (offset, length) in self.ring.segments(self.written, payload.len()) {
            let (now, later) = rest.split_at(length);
            // SAFETY: the range lies in the mapping, and the reader has returned it.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), self.ring.0.as_mut_ptr().add(offset), length) };
            rest = later;
        }
        self.written += payload.len() as u64;
        Ok(())
    }
}

/// The receiving half of a ring.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: Mapping,
    read: u64,
}

/// The result of opening a ring.
#[derive(Debug)]
pub(super) enum RingLookup {
    /// The sender's ring.
    Ring(RingReader),
    /// There is no file at the ring's path, or it can't be mapped: the two ends share no memory.
    None,
    /// The file is not the sender's ring, for the reason in the text.
    Other(String),
}

impl RingReader {
    /// Maps `ring`, if the file at the ring's path is the file that the sender created. The checks use the open file,
    /// which no process can replace.
    pub(crate) fn open(ring: &RingIdentity) -> RingLookup {
        let file = match open_existing(&ring.path()) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return RingLookup::None,
            Err(e) => return RingLookup::Other(format!("it can't be opened: {e}")),
        };
        match difference(&file, ring) {
            Ok(None) => {}
            Ok(Some(why)) => return RingLookup::Other(why),
            Err(e) => return RingLookup::Other(format!("it can't be read: {e}")),
        }
        let mapping = Mapping::new(&file, ring.bytes);
        mapping.map_or(RingLookup::None, |mapping| RingLookup::Ring(RingReader { ring: mapping, read: 0 }))
    }

    /// Copies the next payload to `into`, and returns its space to the writer.
    pub(super) fn take(&mut self, into: &mut [u8], stream: &mut LinkStream) -> io::Result<()> {
        let total = into.len();
        let mut rest = into;
        for (offset, length) in self.ring.segments(self.read, total) {
            let (now, later) = rest.split_at_mut(length);
            // SAFETY: the range lies in the mapping. The writer wrote the range before the announcement, and does not
            // change it before this reader returns the space.
            unsafe { std::ptr::copy_nonoverlapping(self.ring.0.as_mut_ptr().add(offset), now.as_mut_ptr(), length) };
            rest = later;
        }
        self.read += total as u64;
        stream.write_all(&(total as u64).to_le_bytes())
    }
}

/// Returns the reason why `file` is not `ring`; `None` if it is.
fn difference(file: &File, ring: &RingIdentity) -> io::Result<Option<String>> {
    let found = file.metadata()?;
    let own = geteuid().as_raw();
    let wrong = [
        (!found.is_file(), "it is no regular file".to_owned()),
        (found.dev() != std::fs::metadata(FOLDER)?.dev(), format!("it is not in the file system of {FOLDER}")),
        (found.uid() != own, format!("it belongs to user {}, not {own}", found.uid())),
        (found.mode() & 0o7777 != FILE_MODE, format!("its mode is {:o}, not {FILE_MODE:o}", found.mode() & 0o7777)),
        (found.nlink() != 1, format!("it has {} names, not one", found.nlink())),
        (found.len() != ring.file_bytes(), format!("it has {} bytes, not {}", found.len(), ring.file_bytes())),
    ];
    if let Some((_, why)) = wrong.into_iter().find(|(wrong, _)| *wrong) {
        return Ok(Some(why));
    }
    let mut mark = [0; MARK_BYTES];
    file.read_exact_at(&mut mark, ring.bytes as u64)?;
    Ok((mark != ring.mark()).then(|| "it is another ring".to_owned()))
}
