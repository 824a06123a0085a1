//! A ring of bytes in memory that two processes on one host map. The writer copies a payload in and rings over the
//! stream; the reader copies it out and gives the bytes back over the same stream. Nobody spins: both wait in `read`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The folder of POSIX shared memory on Linux.
const FOLDER: &str = "/dev/shm";

/// A mapping of a whole file, unmapped on drop.
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

/// A ring that exists under a name until the other side has mapped it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) path: PathBuf,
    ring: Mapping,
}

impl Named {
    /// Creates a ring of at least `bytes` bytes.
    pub(super) fn create(name: &str, bytes: usize) -> io::Result<Named> {
        let path = Path::new(FOLDER).join(name);
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let bytes = bytes.next_multiple_of(4096);
        // allocated now: a full /dev/shm must be an error here, not a SIGBUS later
        // SAFETY: a plain system call on a file descriptor that we own.
        let rc = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        let named = if rc == 0 { Mapping::of(&file, bytes) } else { Err(io::Error::from_raw_os_error(rc)) };
        match named {
            Ok(ring) => Ok(Named { path, ring }),
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Removes the name: from now on only the two mappings hold the memory, and a kill leaves nothing behind.
    pub(super) fn into_writer(self) -> RingWriter {
        let Named { path, ring } = self;
        let _ = std::fs::remove_file(path);
        RingWriter { ring, written: 0, released: 0 }
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

impl RingReader {
    /// Maps the ring at `path`.
    pub(super) fn open(path: &Path) -> io::Result<RingReader> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len() as usize;
        Ok(RingReader { ring: Mapping::of(&file, bytes)?, read: 0 })
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
