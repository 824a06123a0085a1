//! A ring of bytes in memory that two processes on one host map. The writer copies a payload in and rings over the
//! stream; the reader copies it out and gives the bytes back over the same stream. Nobody spins: both wait in `read`.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::LinkId;

/// The folder of POSIX shared memory on Linux.
const FOLDER: &str = "/dev/shm";

/// Of a ring's file: nobody else's business.
const MODE: u32 = 0o600;

/// A mapping of a file from its start, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned memory; each half uses it from one thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(file: &File, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new shared mapping of a file that we hold open; checked for failure below.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(mapped) if start != libc::MAP_FAILED => Ok(Mapping { start: mapped, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The two stretches that hold `length` bytes from ring position `at`.
    fn stretches(&self, at: u64, length: usize) -> [(usize, usize); 2] {
        let offset = (at % self.bytes as u64) as usize;
        let first = length.min(self.bytes - offset);
        [(offset, first), (0, length - first)]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this size, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Whose a ring is. Its name and its mark are made of this, so what a stranger says finds no other file, and no other ring
/// passes for this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<'a> {
    pub(super) group: &'a str,
    pub(super) link: LinkId,
    /// Tells it from all other rings of this link.
    pub(super) nonce: &'a str,
    /// What it holds; the mark comes on top.
    pub(super) bytes: usize,
}

/// Bytes at the end of a ring's file, behind what is mapped.
const MARK: usize = 32;

impl Ring<'_> {
    fn mark(&self) -> [u8; MARK] {
        let Ring { group, link, nonce, bytes } = self;
        blake3::hash(format!("{group}\n{link}\n{nonce}\n{bytes}").as_bytes()).into()
    }

    /// Where it is while it has a name.
    pub(super) fn path(&self) -> PathBuf {
        let group = blake3::hash(self.group.as_bytes()).to_hex();
        let ring = blake3::hash(&self.mark()).to_hex();
        Path::new(FOLDER).join(format!("stagecoach-{}-{}", &group[..16], &ring[..32]))
    }

    fn file_bytes(&self) -> u64 {
        (self.bytes + MARK) as u64
    }
}

/// A name in shared memory, removed on drop.
#[derive(Debug)]
struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A ring that exists under a name until the other side has mapped it.
#[derive(Debug)]
pub(super) struct Named {
    mapping: Mapping,
    name: Name,
}

impl Named {
    /// Creates `ring`.
    pub(super) fn create(ring: &Ring) -> io::Result<Named> {
        let path = ring.path();
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&path)?;
        let name = Name(path);
        file.set_permissions(Permissions::from_mode(MODE))?; // whatever the umask is
        // allocated now: a full /dev/shm must be an error here, not a SIGBUS later
        // SAFETY: a plain system call on a file descriptor that we own.
        let rc = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, ring.file_bytes() as libc::off_t) };
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        file.write_all_at(&ring.mark(), ring.bytes as u64)?;
        Ok(Named { mapping: Mapping::of(&file, ring.bytes)?, name })
    }

    /// Removes the name: from now on only the two mappings hold the memory, and a kill leaves nothing behind.
    pub(super) fn into_writer(self) -> RingWriter {
        drop(self.name);
        RingWriter { ring: self.mapping, written: 0, released: 0 }
    }
}

/// The sending half.
#[derive(Debug)]
pub(super) struct RingWriter {
    ring: Mapping,
    written: u64,
    released: u64,
}

impl RingWriter {
    /// Copies `payload` in, first waiting until the reader has given back enough room.
    pub(super) fn put(&mut self, payload: &[u8], stream: &mut TcpStream) -> io::Result<()> {
        if payload.len() > self.ring.bytes {
            return Err(io::Error::other(format!("{} bytes do not fit a ring of {}", payload.len(), self.ring.bytes)));
        }
        while self.written + payload.len() as u64 - self.released > self.ring.bytes as u64 {
            let mut credit = [0; 8];
            stream.read_exact(&mut credit)?;
            self.released += u64::from_le_bytes(credit);
        }
        let mut rest = payload;
        for (offset, length) in self.ring.stretches(self.written, payload.len()) {
            let (now, later) = rest.split_at(length);
            // SAFETY: the stretch lies in the mapping, and the reader has given it back.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), self.ring.start.as_ptr().add(offset), length) };
            rest = later;
        }
        self.written += payload.len() as u64;
        Ok(())
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: Mapping,
    read: u64,
}

/// What is found where a ring should be.
#[derive(Debug)]
pub(super) enum Found {
    /// The ring.
    Ring(RingReader),
    /// Nothing, or nothing that can be mapped: the two ends share no memory.
    Nothing,
    /// Something else; why it is not the ring.
    Foreign(String),
}

impl RingReader {
    /// Maps `ring`, if the file under its name is the one that its sender made. A file that was opened can't be exchanged,
    /// so it is asked itself.
    pub(super) fn open(ring: &Ring) -> Found {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(ring.path());
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Found::Nothing,
            Err(e) => return Found::Foreign(format!("it can't be opened: {e}")),
        };
        match foreign(&file, ring) {
            Ok(None) => {}
            Ok(Some(why)) => return Found::Foreign(why),
            Err(e) => return Found::Foreign(format!("it can't be read: {e}")),
        }
        let mapping = Mapping::of(&file, ring.bytes);
        mapping.map_or(Found::Nothing, |mapping| Found::Ring(RingReader { ring: mapping, read: 0 }))
    }

    /// Copies the next payload out and gives its room back.
    pub(super) fn take(&mut self, into: &mut [u8], stream: &mut TcpStream) -> io::Result<()> {
        let total = into.len();
        let mut rest = into;
        for (offset, length) in self.ring.stretches(self.read, total) {
            let (now, later) = rest.split_at_mut(length);
            // SAFETY: the stretch lies in the mapping; the writer rang, so it is written and will not change.
            unsafe { std::ptr::copy_nonoverlapping(self.ring.start.as_ptr().add(offset), now.as_mut_ptr(), length) };
            rest = later;
        }
        self.read += total as u64;
        stream.write_all(&(total as u64).to_le_bytes())
    }
}

/// Why `file` is not `ring`.
fn foreign(file: &File, ring: &Ring) -> io::Result<Option<String>> {
    let found = file.metadata()?;
    // SAFETY: a plain system call without arguments.
    let own = unsafe { libc::geteuid() };
    let wrong = [
        (!found.is_file(), "it is no regular file".to_owned()),
        (found.dev() != std::fs::metadata(FOLDER)?.dev(), format!("it is not in the file system of {FOLDER}")),
        (found.uid() != own, format!("it belongs to user {}, not {own}", found.uid())),
        (found.mode() & 0o7777 != MODE, format!("its mode is {:o}, not {MODE:o}", found.mode() & 0o7777)),
        (found.nlink() != 1, format!("it has {} names, not one", found.nlink())),
        (found.len() != ring.file_bytes(), format!("it has {} bytes, not {}", found.len(), ring.file_bytes())),
    ];
    if let Some((_, why)) = wrong.into_iter().find(|(wrong, _)| *wrong) {
        return Ok(Some(why));
    }
    let mut mark = [0; MARK];
    file.read_exact_at(&mut mark, ring.bytes as u64)?;
    Ok((mark != ring.mark()).then(|| "it is another ring".to_owned()))
}
