//! Writes large files with `O_DIRECT`, which bypasses the page cache, and with several writes in flight.
//!
//! A checkpoint is written once, and other processes read it rarely. Writes through the page cache would copy every
//! byte and evict pages that other processes use. The speed of such writes would vary several-fold with the number of
//! free pages. A direct write returns when the device or the server has the bytes. On a slow network, a writer that
//! issues one write at a time would spend most of its time waiting for answers.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::OnceLock;

use rustix::fs::OFlags;

use super::FileWriter;
use super::write_queue::{Sink, WriteQueue};

/// Writes whole buffers with `O_DIRECT` if the file system supports it. Writes the last, shorter buffer without
/// `O_DIRECT`.
pub(super) struct DirectWriter {
    queue: WriteQueue<DirectFile>,
}

impl DirectWriter {
    pub(super) fn new(file: File) -> DirectWriter {
        DirectWriter { queue: WriteQueue::new(DirectFile { file: OpenFile::new(file) }) }
    }
}

impl FileWriter for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.queue.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.queue.flush()?;
        self.queue.sink().file.buffered.sync_all()
    }
}

struct DirectFile<F = OpenFile> {
    file: F,
}

/// The system calls on an open file.
trait Descriptor {
    /// Makes one call that writes a prefix of `bytes`, with `O_DIRECT` if `direct`. Returns the length of the prefix.
    fn write_at(&self, bytes: &[u8], offset: u64, direct: bool) -> io::Result<usize>;
}

/// A file that is open twice, because `O_DIRECT` is a flag of an open file: several threads write to the file, and a
/// thread that changed the flag would change it for the writes of all threads.
struct OpenFile {
    buffered: File,
    /// The file with `O_DIRECT`, from the first direct write. `None` if the file system does not support it.
    direct: OnceLock<Option<File>>,
}

impl OpenFile {
    fn new(file: File) -> OpenFile {
        OpenFile { buffered: file, direct: OnceLock::new() }
    }

    fn file(&self, direct: bool) -> Option<&File> {
        if direct { self.direct.get_or_init(|| self.open_direct()).as_ref() } else { Some(&self.buffered) }
    }

    /// Opens the same file with `O_DIRECT`, even if its path now names another file.
    fn open_direct(&self) -> Option<File> {
        let path = format!("/proc/self/fd/{}", self.buffered.as_raw_fd());
        OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).ok()
    }
}

impl Descriptor for OpenFile {
    fn write_at(&self, bytes: &[u8], offset: u64, direct: bool) -> io::Result<usize> {
        self.file(direct).ok_or(ErrorKind::InvalidInput)?.write_at(bytes, offset)
    }
}

impl<F: Descriptor + Send + Sync + 'static> Sink for DirectFile<F> {
    fn write_at(&self, mut bytes: &[u8], mut offset: u64, is_whole: bool) -> io::Result<()> {
        let mut direct = is_whole;
        while !bytes.is_empty() {
            match self.file.write_at(bytes, offset, direct) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // the file system does not support direct writes, or a short write has ended inside a sector, for
                // example on a full disk: the buffered write then either succeeds or returns the actual error
                Err(e) if e.kind() == ErrorKind::InvalidInput && direct => direct = false,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
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
        buffered_calls: usize,
    }

    const SECTOR: usize = 512;

    impl Device {
        fn new(supports_direct: bool, most: usize, capacity: usize) -> DirectFile<Device> {
            DirectFile { file: Device { state: Mutex::default(), supports_direct, most, capacity } }
        }
    }

    impl Descriptor for Device {
        fn write_at(&self, bytes: &[u8], offset: u64, direct: bool) -> io::Result<usize> {
            let (mut state, offset) = (self.state.lock().unwrap(), offset as usize);
            let is_aligned = offset.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR);
            if direct && !(self.supports_direct && is_aligned) {
                return Err(ErrorKind::InvalidInput.into());
            }
            let taken = bytes.len().min(self.most).min(self.capacity - offset);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            state.buffered_calls += usize::from(!direct);
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

    #[test]
    fn whole_buffers_bypass_the_page_cache_where_the_file_system_allows_it() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let file = OpenFile::new(File::create(folder.path().join("file")).unwrap());
        // a folder whose file system has no direct writes, such as an older tmpfs, shows nothing
        let (Some(direct), Some(buffered)) = (file.file(true), file.file(false)) else { return };
        let is_direct = |file: &File| rustix::fs::fcntl_getfl(file).unwrap().contains(OFlags::DIRECT);
        assert_eq!((is_direct(direct), is_direct(buffered)), (true, false));
        let inode = |file: &File| MetadataExt::ino(&file.metadata().unwrap());
        assert_eq!(inode(direct), inode(buffered));
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
            let file = DirectFile { file: OpenFile::new(create(name)) };
            let mut queue = WriteQueue::new(Late { file, latency: Duration::from_millis(latency) });
            queue.write(&content).and_then(|()| queue.flush()).unwrap();
            queue.sink().file.file.buffered.sync_all().unwrap();
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
