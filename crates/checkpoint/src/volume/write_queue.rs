//! Writes a sequence of bytes in whole buffers, with several writes in flight.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The alignment that devices require for addresses, offsets and lengths of direct writes.
const ALIGNMENT_BYTES: usize = 4096;

/// The number of bytes per write.
const BUFFER_BYTES: usize = 1 << 20;

/// The largest number of writes in flight. With a latency of 2 ms, the queue writes up to 4 GB/s.
const WRITES_IN_FLIGHT: usize = 8;

/// The destination of a [`WriteQueue`].
pub(super) trait Sink: Send + Sync + 'static {
    /// Writes all of `bytes` at `offset`. Several threads call this function at the same time. `is_whole` means that
    /// `bytes` is a whole buffer, aligned for a direct write. The last buffer of a file may be shorter. That buffer is
    /// written after all other writes have ended.
    fn write_at(&self, bytes: &[u8], offset: u64, is_whole: bool) -> io::Result<()>;
}

/// Writes to a [`Sink`]. No write starts after the queue has been dropped.
pub(super) struct WriteQueue<S> {
    sink: Arc<S>,
    /// The current buffer. `filled` is the number of bytes in it.
    buffer: Option<Buffer>,
    filled: usize,
    /// The offset of the current buffer in the file, in bytes.
    offset: u64,
    /// The threads that write, or `None` until the first buffer is full.
    writers: Option<Writers>,
}

impl<S: Sink> WriteQueue<S> {
    pub(super) fn new(sink: S) -> WriteQueue<S> {
        WriteQueue { sink: Arc::new(sink), buffer: None, filled: 0, offset: 0, writers: None }
    }

    pub(super) fn sink(&self) -> &S {
        &self.sink
    }

    /// Queues the bytes. The call may return before the sink has received them.
    ///
    /// # Errors
    /// Returns the sink's error, which may concern bytes of earlier calls.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut buffer = match (self.buffer.take(), &mut self.writers) {
                (Some(buffer), _) => buffer,
                (None, Some(writers)) => writers.free_buffer()?,
                (None, None) => Buffer::new(),
            };
            let free = &mut buffer.bytes_mut()[self.filled..];
            let (now, later) = bytes.split_at(free.len().min(bytes.len()));
            free[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled < BUFFER_BYTES {
                self.buffer = Some(buffer);
                continue;
            }
            let sink = &self.sink;
            self.writers.get_or_insert_with(|| Writers::start(sink)).send(buffer, self.offset)?;
            self.offset += BUFFER_BYTES as u64;
            self.filled = 0;
        }
        Ok(())
    }

    /// Waits until all bytes are written.
    ///
    /// # Errors
    /// Returns the sink's error.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if let Some(writers) = &mut self.writers {
            writers.finish()?;
        }
        if let (Some(buffer), 1..) = (&self.buffer, self.filled) {
            self.sink.write_at(&buffer.bytes()[..self.filled], self.offset, false)?;
            self.offset += self.filled as u64;
            self.filled = 0;
        }
        Ok(())
    }
}

/// An aligned buffer of [`BUFFER_BYTES`] bytes. The buffer begins at index `start` of `memory`.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Buffer {
        let memory = vec![0; BUFFER_BYTES + ALIGNMENT_BYTES];
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        Buffer { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..BUFFER_BYTES]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..BUFFER_BYTES]
    }
}

/// A whole buffer and its offset.
type Write = (Buffer, u64);

/// The writing threads. Dropping the value joins them.
struct Writers {
    /// The queue of full buffers. `drop` sets it to `None`, which ends the threads.
    full: Option<Sender<Write>>,
    written: Receiver<(Buffer, io::Result<()>)>,
    in_flight: usize,
    free: Vec<Buffer>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start<S: Sink>(sink: &Arc<S>) -> Writers {
        let (full, writes) = channel::<Write>();
        let (done, written) = channel();
        let writes = Arc::new(Mutex::new(writes));
        let write = |_| {
            let (sink, writes, done) = (sink.clone(), writes.clone(), done.clone());
            std::thread::spawn(move || {
                // a thread holds the lock while it waits for the next buffer, and the other threads wait for the lock
                let next = || writes.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok((buffer, offset)) = next() {
                    let result = sink.write_at(buffer.bytes(), offset, true);
                    if done.send((buffer, result)).is_err() {
                        break;
                    }
                }
            })
        };
        let threads = (0..WRITES_IN_FLIGHT).map(write).collect();
        Writers { full: Some(full), written, in_flight: 0, free: Vec::new(), threads }
    }

    fn send(&mut self, buffer: Buffer, offset: u64) -> io::Result<()> {
        let full = self.full.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        full.send((buffer, offset)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Returns a buffer to fill. If every thread is busy, waits until one of them ends its write.
    fn free_buffer(&mut self) -> io::Result<Buffer> {
        while self.in_flight >= WRITES_IN_FLIGHT {
            self.wait_for_one()?;
        }
        Ok(self.free.pop().unwrap_or_else(Buffer::new))
    }

    fn finish(&mut self) -> io::Result<()> {
        while self.in_flight > 0 {
            self.wait_for_one()?;
        }
        Ok(())
    }

    fn wait_for_one(&mut self) -> io::Result<()> {
        let (buffer, result) = self.written.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.in_flight -= 1;
        self.free.push(buffer);
        result
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.full = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    /// A sink that stores the bytes. Every write blocks until [`WRITES_IN_FLIGHT`] writes are in flight at once, or
    /// until the write of the shorter last buffer begins.
    #[derive(Default)]
    struct Gate {
        state: Mutex<GateState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct GateState {
        file: Vec<u8>,
        inside: usize,
        most: usize,
        is_open: bool,
        fails_at: Option<u64>,
    }

    impl Sink for Arc<Gate> {
        fn write_at(&self, bytes: &[u8], offset: u64, is_whole: bool) -> io::Result<()> {
            let mut state = self.state.lock().unwrap();
            assert_eq!(
                is_whole,
                bytes.len() == BUFFER_BYTES && (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT_BYTES)
            );
            state.inside += 1;
            state.most = state.most.max(state.inside);
            state.is_open |= state.inside == WRITES_IN_FLIGHT || !is_whole;
            self.changed.notify_all();
            let (mut state, waited) = self.changed.wait_timeout_while(state, DEADLINE, |state| !state.is_open).unwrap();
            assert!(!waited.timed_out(), "{} writes were under way", state.inside);
            state.inside -= 1;
            if state.fails_at == Some(offset) {
                return Err(io::Error::from_raw_os_error(28));
            }
            let end = offset as usize + bytes.len();
            let length = state.file.len().max(end);
            state.file.resize(length, 0);
            state.file[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        }
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at / 7 + at % 251) as u8).collect()
    }

    #[test]
    fn several_writes_are_under_way_and_all_bytes_arrive() {
        for (count, piece) in
            [(19 * BUFFER_BYTES + 5, 700_001), (WRITES_IN_FLIGHT * BUFFER_BYTES, BUFFER_BYTES), (5, 2), (0, 1)]
        {
            let gate = Arc::new(Gate::default());
            let mut queue = WriteQueue::new(gate.clone());
            let content = bytes(count);
            content.chunks(piece).for_each(|piece| queue.write(piece).unwrap());
            queue.flush().unwrap();
            queue.flush().unwrap();
            let state = gate.state.lock().unwrap();
            assert!(state.file == content, "{count} bytes");
            let whole = count / BUFFER_BYTES;
            assert_eq!(state.most, WRITES_IN_FLIGHT.min(whole).max(usize::from(count > 0)), "{count} bytes");
        }
    }

    #[test]
    fn an_error_is_reported_at_the_next_write_or_flush() {
        for fails_at in 0..8 {
            let state =
                GateState { fails_at: Some(fails_at * BUFFER_BYTES as u64), is_open: true, ..GateState::default() };
            let mut queue = WriteQueue::new(Arc::new(Gate { state: Mutex::new(state), changed: Condvar::new() }));
            let written = queue.write(&bytes(8 * BUFFER_BYTES)).and_then(|()| queue.flush());
            assert_eq!(written.unwrap_err().raw_os_error(), Some(28));
        }
    }
}
