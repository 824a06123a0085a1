//! Writes large files with `O_DIRECT`, which bypasses the page cache, and with several writes in flight.
//!
//! A checkpoint is written once, and other processes read it rarely. Writes through the page cache would copy every
//! byte and evict pages that other processes use. The speed of such writes would vary several-fold with the number of
//! free pages. A direct write returns when the device or the server has the bytes. On a slow network, a writer that
//! issues one write at a time would spend most of its time waiting for answers.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::FileWriter;
use super::write_queue::{Sink, WriteQueue};

/// Writes whole buffers with `O_DIRECT` if the file system supports it. Writes the last, shorter buffer without
/// `O_DIRECT`.
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

struct DirectFile<F = File> {
    file: F,
}

/// The system calls on an open file.
trait Descriptor {
    /// Sets or clears `O_DIRECT`.
    fn set_direct(&self, direct: bool) -> io::Result<()>;

    /// Makes one call that writes a prefix of `bytes`. Returns the length of the prefix.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
}

impl Descriptor for File {
    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = fcntl_getfl(self)?;
        let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        if wanted == flags { Ok(()) } else { Ok(fcntl_setfl(self, wanted)?) }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }
}

impl<F: Descriptor + Send + Sync + 'static> Sink for DirectFile<F> {
    fn write_at(&self, mut bytes: &[u8], mut offset: u64, is_whole: bool) -> io::Result<()> {
        // if the file system does not support direct writes, either `set_direct` or the write fails
        let mut direct = self.file.set_direct(is_whole).is_ok() && is_whole;
        while !bytes.is_empty() {
            match self.file.write_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // the file system does not support direct writes, or a short write has ended inside a sector, for
                // example on a full disk: the buffered write then either succeeds or returns the actual error
                Err(e) if e.kind() == ErrorKind::InvalidInput && direct => {
                    self.file.set_direct(false)?;
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
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use super::*;

    /// A device with sectors of 512 bytes. A direct write must consist of whole sectors. A call writes at most `most`
    /// bytes. The device holds at most `capacity` bytes.
    struct Device {
        state: Mutex<DeviceState>,
        supports_direct: bool,
        most: usize,
        capacity: usize,
    }

    #[derive(Default)]
    struct DeviceState {
        content: Vec<u8>,
        direct: bool,
        buffered_calls: usize,
    }

    const SECTOR: usize = 512;

    impl Device {
        fn new(supports_direct: bool, most: usize, capacity: usize) -> DirectFile<Device> {
            DirectFile { file: Device { state: Mutex::default(), supports_direct, most, capacity } }
        }
    }

    impl Descriptor for Device {
        fn set_direct(&self, direct: bool) -> io::Result<()> {
            if direct && !self.supports_direct {
                return Err(ErrorKind::InvalidInput.into());
            }
            self.state.lock().unwrap().direct = direct;
            Ok(())
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            let (mut state, offset) = (self.state.lock().unwrap(), offset as usize);
            if state.direct && !(offset.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR)) {
                return Err(ErrorKind::InvalidInput.into());
            }
            let taken = bytes.len().min(self.most).min(self.capacity - offset);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            state.buffered_calls += usize::from(!state.direct);
            state.content.truncate(offset);
            state.content.extend(&bytes[..taken]);
            Ok(taken)
        }
    }

    /// The size of a whole buffer in these tests, in bytes.
    const WHOLE: usize = 8 * SECTOR;

    fn content() -> Vec<u8> {
        (0..WHOLE).map(|at| (at / 7 + at % 251) as u8).collect()
    }

    #[test]
    fn what_a_short_direct_write_leaves_is_written_through_the_page_cache() {
        // the writes stay direct if every call ends at the end of a sector; after a call that ends inside a sector, the
        // remaining bytes can't be written directly
        for (most, buffered) in [(WHOLE, false), (2 * SECTOR, false), (SECTOR + 100, true), (7, true)] {
            let device = Device::new(true, most, WHOLE);
            device.write_at(&content(), 0, true).unwrap();
            let state = device.file.state.into_inner().unwrap();
            assert!(state.content == content(), "{most} bytes a call");
            assert_eq!(state.buffered_calls > 0, buffered, "{most} bytes a call");
        }
        let device = Device::new(false, WHOLE, WHOLE);
        device.write_at(&content(), 0, true).unwrap();
        assert_eq!(device.file.state.into_inner().unwrap().buffered_calls, 1);
    }

    #[test]
    fn a_full_disk_is_reported_as_such_wherever_it_ends() {
        for capacity in [0, SECTOR, SECTOR + 100, WHOLE - 1] {
            for supports_direct in [true, false] {
                let error = Device::new(supports_direct, WHOLE, capacity).write_at(&content(), 0, true).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{capacity} bytes, direct: {supports_direct}");
            }
        }
    }

    /// A file whose writes have a latency.
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

    /// Prints the speed of writes with a latency of 2 ms, relative to `dd conv=fsync` without a latency. The test
    /// asserts nothing.
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
