//! Writing large files past the page cache.
//!
//! A checkpoint is written once and read, if ever, by other processes. Through the page cache it would cost a copy of
//! every byte, push out pages that others use, and vary several-fold with the pages the kernel finds.

use std::fs::File;
use std::io::{self, ErrorKind, Write};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::volume::FileWriter;

/// What devices ask of memory, offsets and lengths at most.
const ALIGNMENT: usize = 4096;

/// Bytes that go to the device at once.
const ROOM: usize = 4 << 20;

/// Writes whole rooms with `O_DIRECT` where the file system has it, and what remains at the end like any other file.
pub(crate) struct DirectWriter {
    file: File,
    /// Has [`ROOM`] aligned bytes from `start`.
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl DirectWriter {
    pub(crate) fn new(file: File) -> DirectWriter {
        DirectWriter { file, memory: Vec::new(), start: 0, filled: 0 }
    }

    fn room(&mut self) -> &mut [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; ROOM + ALIGNMENT];
            self.start = self.memory.as_ptr().align_offset(ALIGNMENT);
        }
        &mut self.memory[self.start..][..ROOM]
    }

    /// Writes what is in the room.
    fn pass_on(&mut self, direct: bool) -> io::Result<()> {
        // a file system that has no direct writes says so here or at the write
        let mut direct = self.set_direct(direct).is_ok() && direct;
        let mut bytes = &self.memory[self.start..][..self.filled];
        while !bytes.is_empty() {
            match (&self.file).write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // also what follows a short write, as on a disk that fills: the plain one tells the true reason
                Err(e) if e.kind() == ErrorKind::InvalidInput && direct => {
                    self.set_direct(false)?;
                    direct = false;
                }
                Err(e) => return Err(e),
            }
        }
        self.filled = 0;
        Ok(())
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        if wanted == flags { Ok(()) } else { Ok(fcntl_setfl(&self.file, wanted)?) }
    }
}

impl FileWriter for DirectWriter {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let filled = self.filled;
            let free = &mut self.room()[filled..];
            let (now, later) = bytes.split_at(free.len().min(bytes.len()));
            free[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == ROOM {
                self.pass_on(true)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.pass_on(false)?;
        }
        self.file.sync_all()
    }
}
