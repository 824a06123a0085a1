//! A volume that records its calls, and at a chosen one fails, crashes, or runs a callback first.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::CheckpointError;
use crate::volume::{DirEntry, FileReader, FileWriter, Volume};

/// No space left on device.
pub const ENOSPC: i32 = 28;
/// Input/output error.
pub const EIO: i32 = 5;

/// No such file or directory.
pub const ENOENT: i32 = 2;
/// File exists.
pub const EEXIST: i32 = 17;
/// Directory not empty.
pub const ENOTEMPTY: i32 = 39;

/// What happens at the chosen call.
pub enum Fault {
    /// The process crashes before it: this call and all later ones fail with [`Crashed`].
    CrashBefore,
    /// The process crashes after it: it takes effect, but the caller never gets the result.
    CrashAfter,
    /// The process crashes during it: half of a write takes effect. For other calls, as [`Fault::CrashBefore`].
    CrashDuring,
    /// It fails with this `errno`, once; the first half of a write takes effect.
    Fail(i32),
    /// It takes effect and returns this `errno`, once: NFS retried it, and the retry found it done.
    ErrorAfterSuccess(i32),
    /// This runs first: what another process does while this one is suspended.
    RunFirst(Box<dyn FnOnce() + Send>),
}

/// One call that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation's name in [`Volume`], [`FileWriter`] or [`FileReader`].
    pub operation: &'static str,
    /// The path; for a rename, the source.
    pub path: String,
}

/// The error of every call after the process has crashed.
#[derive(Debug, thiserror::Error)]
#[error("the process has crashed (by a test)")]
pub struct Crashed;

impl Crashed {
    /// Whether `error` is [`Crashed`].
    pub fn is(error: &CheckpointError) -> bool {
        matches!(error, CheckpointError::Io { source, .. } if source.get_ref().is_some_and(|e| e.is::<Crashed>()))
    }
}

/// One process's handle on a volume. Calls are numbered from 0.
#[derive(Clone)]
pub struct FaultyVolume {
    inner: Arc<dyn Volume>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    trace: Vec<Call>,
    fault: Option<(usize, Fault)>,
    crashed: bool,
}

impl FaultyVolume {
    /// A volume that records its calls and never fails.
    pub fn counting(inner: Arc<dyn Volume>) -> FaultyVolume {
        FaultyVolume { inner, state: Arc::default() }
    }

    /// A volume with `fault` at call `at`.
    pub fn failing(inner: Arc<dyn Volume>, at: usize, fault: Fault) -> FaultyVolume {
        let state = State { fault: Some((at, fault)), ..State::default() };
        FaultyVolume { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// The calls so far.
    pub fn trace(&self) -> Vec<Call> {
        self.lock().trace.clone()
    }

    /// Whether the fault has happened.
    pub fn has_fired(&self) -> bool {
        self.lock().fault.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, operation: &'static str, path: &str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call_with_partial(operation, path, act, || ())
    }

    /// `partial` is the effect of a call that fails part-way.
    fn call_with_partial<T>(
        &self,
        operation: &'static str,
        path: &str,
        act: impl FnOnce() -> io::Result<T>,
        partial: impl FnOnce(),
    ) -> io::Result<T> {
        let fault = {
            let mut state = self.lock();
            if state.crashed {
                return Err(io::Error::other(Crashed));
            }
            let number = state.trace.len();
            state.trace.push(Call { operation, path: path.to_owned() });
            let fault = state.fault.take_if(|(at, _)| *at == number).map(|(_, fault)| fault);
            state.crashed = matches!(fault, Some(Fault::CrashBefore | Fault::CrashAfter | Fault::CrashDuring));
            fault
        };
        match fault {
            None => act(),
            Some(Fault::RunFirst(other)) => {
                other();
                act()
            }
            Some(Fault::ErrorAfterSuccess(number)) => act().and_then(|_| Err(io::Error::from_raw_os_error(number))),
            Some(Fault::CrashBefore) => Err(io::Error::other(Crashed)),
            Some(Fault::CrashAfter) => act().and_then(|_| Err(io::Error::other(Crashed))),
            Some(Fault::CrashDuring) => {
                partial();
                Err(io::Error::other(Crashed))
            }
            Some(Fault::Fail(number)) => {
                partial();
                Err(io::Error::from_raw_os_error(number))
            }
        }
    }
}

impl Volume for FaultyVolume {
    fn display(&self, path: &str) -> PathBuf {
        self.inner.display(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.call("make_dir", path, || self.inner.make_dir(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.call("list", path, || self.inner.list(path))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let inner = self.call("create", path, || self.inner.create(path))?;
        Ok(Box::new(FaultyWriter { inner, volume: self.clone(), path: path.to_owned() }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let inner = self.call("open", path, || self.inner.open(path))?;
        Ok(Box::new(FaultyReader { inner, volume: self.clone(), path: path.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.call("rename", from, || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.call("remove_file", path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.call("remove_dir", path, || self.inner.remove_dir(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.call("sync_dir", path, || self.inner.sync_dir(path))
    }
}

struct FaultyWriter {
    inner: Box<dyn FileWriter>,
    volume: FaultyVolume,
    path: String,
}

impl FileWriter for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let inner = std::cell::RefCell::new(&mut self.inner);
        let partial = || drop(inner.borrow_mut().write(&bytes[..bytes.len() / 2]));
        self.volume.call_with_partial("write", &self.path, || inner.borrow_mut().write(bytes), partial)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.call("sync", &self.path, || self.inner.sync())
    }
}

struct FaultyReader {
    inner: Box<dyn FileReader>,
    volume: FaultyVolume,
    path: String,
}

impl FileReader for FaultyReader {
    fn size(&self) -> io::Result<u64> {
        self.volume.call("size", &self.path, || self.inner.size())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.volume.call("read_at", &self.path, || self.inner.read_at(offset, buffer))
    }
}
