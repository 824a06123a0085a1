//! Writing large files with `O_DIRECT`, bypassing the page cache, with several writes in flight.
//!
//! A checkpoint is written once and read, if ever, by other processes. Through the page cache it would cost a copy of
//! every byte and evict pages that others use, and its speed would vary several-fold with the free pages. A direct write returns
//! when the device, or the server, has the bytes: one at a time, a slow network would wait for its answers most of the time.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::FileWriter;
use super::write_queue::{Sink, WriteQueue};

/// Writes whole buffers with `O_DIRECT` where the file system supports it, and the remainder without.
pub(super) struct DirectWriter {
    queue: WriteQueue<DirectFile>,
}

impl DirectWriter {
    pub(super) fn new(file: File) -> DirectWriter {
        DirectWriter { queue: WriteQueue::new(DirectFile { file }) }
    }
}

impl FileWriter for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.queue.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.queue.flush()?;
        self.queue.sink().file.sync_all()
    }
}

struct DirectFile {
    file: File,
}

impl DirectFile {
    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        if wanted == flags { Ok(()) } else { Ok(fcntl_setfl(&self.file, wanted)?) }
    }
}

impl Sink for DirectFile {
    fn write_at(&self, mut bytes: &[u8], mut offset: u64, is_whole: bool) -> io::Result<()> {
        // without support for direct writes, this or the write fails
        let mut direct = self.set_direct(is_whole).is_ok() && is_whole;
        while !bytes.is_empty() {
            match self.file.write_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // also after a short write, as on a full disk: the buffered write then returns the real error
                Err(e) if e.kind() == ErrorKind::InvalidInput && direct => {
                    self.set_direct(false)?;
                    direct = false;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    /// A device, or a server, that answers late.
    struct Late {
        file: DirectFile,
        latency: Duration,
    }

    impl Sink for Late {
        fn write_at(&self, bytes: &[u8], offset: u64, is_whole: bool) -> io::Result<()> {
            std::thread::sleep(self.latency);
            self.file.write_at(bytes, offset, is_whole)
        }
    }

    /// Printed, not asserted: what is left with 2 ms before each write of the speed that `dd conv=fsync` has without.
    #[test]
    #[ignore = "measures: run it alone, on a quiet machine, with --nocapture"]
    fn speed_with_a_latency_of_2_ms() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let content: Vec<u8> = (0..256 << 20).map(|at: u32| (at / 7 + at % 251) as u8).collect();
        let create = |name: &str| File::create(folder.path().join(name)).unwrap();
        let queued = |name: &str, latency: u64| {
            let started = Instant::now();
            let file = DirectFile { file: create(name) };
            let mut queue = WriteQueue::new(Late { file, latency: Duration::from_millis(latency) });
            queue.write(&content).and_then(|()| queue.flush()).unwrap();
            queue.sink().file.file.sync_all().unwrap();
            started.elapsed().as_secs_f64()
        };
        let dd = || {
            let started = Instant::now();
            let mut file = create("dd");
            content.chunks(4 << 20).for_each(|chunk| file.write_all(chunk).unwrap());
            file.sync_all().unwrap();
            started.elapsed().as_secs_f64()
        };
        for round in 0..7 {
            let (dd, late, prompt) = (dd(), queued("late", 2), queued("prompt", 0));
            println!(
                "{round}: dd {dd:.3} s; ours {prompt:.3} s, with 2 ms {late:.3} s, {:.0} % of dd",
                100.0 * dd / late
            );
        }
    }
}
