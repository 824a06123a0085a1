//! Writing large files with `O_DIRECT`, bypassing the page cache.
//!
//! A checkpoint is written once and read, if ever, by other processes. Through the page cache it would cost a copy of
//! every byte and evict pages that others use, and its speed would vary several-fold with the free pages.

use std::fs::File;
use std::io::{self, ErrorKind, Write};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::FileWriter;

/// Alignment that devices require of addresses, offsets and lengths.
const ALIGNMENT_BYTES: usize = 4096;

/// Bytes per write.
const BUFFER_BYTES: usize = 4 << 20;

/// Writes whole buffers with `O_DIRECT` where the file system supports it, and the remainder without.
pub(super) struct DirectWriter {
    file: File,
    /// Holds the aligned buffer of [`BUFFER_BYTES`], from `start`.
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl DirectWriter {
    pub(super) fn new(file: File) -> DirectWriter {
        DirectWriter { file, memory: Vec::new(), start: 0, filled: 0 }
    }

    fn buffer(&mut self) -> &mut [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; BUFFER_BYTES + ALIGNMENT_BYTES];
            self.start = self.memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        }
        &mut self.memory[self.start..][..BUFFER_BYTES]
    }

    /// Writes the filled part of the buffer.
    fn flush_buffer(&mut self, direct: bool) -> io::Result<()> {
        // without support for direct writes, this or the write fails
        let mut direct = self.set_direct(direct).is_ok() && direct;
        let mut bytes = &self.memory[self.start..][..self.filled];
        while !bytes.is_empty() {
            match (&self.file).write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // also after a short write, as on a full disk: the buffered write then returns the real error
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
            let free = &mut self.buffer()[filled..];
            let (now, later) = bytes.split_at(free.len().min(bytes.len()));
            free[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == BUFFER_BYTES {
                self.flush_buffer(true)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.flush_buffer(false)?;
        }
        self.file.sync_all()
    }
}
