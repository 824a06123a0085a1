//! A volume whose calls can fail or crash the process. An injector decides the fault of each call.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use stagecoach_checkpoint::{DirEntry, FileReader, FileWriter, Volume};

/// One call on a volume or on one of its open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCall {
    /// The operation's name in [`Volume`], [`FileWriter`] or [`FileReader`].
    pub operation: &'static str,
    /// The path on which the call acts. For a rename, the path before the rename.
    pub path: String,
    /// The path after a rename, or `None` for other calls.
    pub target: Option<String>,
    /// The number of bytes that a read asks for, or 0 for other calls.
    pub bytes_read: u64,
}

impl VolumeCall {
    fn on(operation: &'static str, path: &str) -> VolumeCall {
        VolumeCall { operation, path: path.to_owned(), target: None, bytes_read: 0 }
    }
}

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeFault {
    /// The process crashes before the call.
    CrashBefore,
    /// The process crashes after the call: the call takes effect, but the caller does not receive the result.
    CrashAfter,
    /// The process crashes during the call: half of a write takes effect. Other calls behave as with `CrashBefore`.
    CrashDuring,
    /// The call fails with this `errno`. The first half of a write takes effect.
    Fail(i32),
    /// The call takes effect and returns this `errno`. NFS does this when it retries a call that has already taken
    /// effect.
    ErrorAfterSuccess(i32),
}

/// Decides which calls have faults.
pub trait FaultInjector: Send + Sync {
    /// Returns the fault of the next call, or `None` if it has no fault.
    ///
    /// # Errors
    /// The error becomes the result of the call, and the call then has no effect.
    fn next(&self, call: VolumeCall) -> io::Result<Option<VolumeFault>>;

    /// Crashes the process. If the crash is only simulated, returns the error that becomes the result of the call.
    fn crash(&self) -> io::Error;
}

/// A volume with faults, as one process uses it. An injector decides the faults of the process's calls.
pub struct FaultyVolume<I> {
    inner: Arc<dyn Volume>,
    injector: Arc<I>,
}

impl<I> Clone for FaultyVolume<I> {
    fn clone(&self) -> Self {
        FaultyVolume { inner: self.inner.clone(), injector: self.injector.clone() }
    }
}

impl<I: FaultInjector> FaultyVolume<I> {
    /// Returns the volume `inner` with the faults of `injector`.
    pub fn new(inner: Arc<dyn Volume>, injector: I) -> Self {
        FaultyVolume { inner, injector: Arc::new(injector) }
    }

    pub(crate) fn injector(&self) -> &I {
        &self.injector
    }

    fn call<T>(&self, operation: &'static str, path: &str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call_with_partial(VolumeCall::on(operation, path), act, || ())
    }

    /// Makes a call with the fault that the injector decides. `act` is the whole call. `partial` is the part that takes
    /// effect if the call fails or crashes half-way.
    fn call_with_partial<T>(
        &self,
        call: VolumeCall,
        act: impl FnOnce() -> io::Result<T>,
        partial: impl FnOnce(),
    ) -> io::Result<T> {
        match self.injector.next(call)? {
            None => act(),
            Some(VolumeFault::CrashBefore) => Err(self.injector.crash()),
            Some(VolumeFault::CrashAfter) => {
                let _ = act();
                Err(self.injector.crash())
            }
            Some(VolumeFault::CrashDuring) => {
                partial();
                Err(self.injector.crash())
            }
            Some(VolumeFault::Fail(number)) => {
                partial();
                Err(io::Error::from_raw_os_error(number))
            }
            Some(VolumeFault::ErrorAfterSuccess(number)) => {
                act().and_then(|_| Err(io::Error::from_raw_os_error(number)))
            }
        }
    }

    fn open_file<F>(&self, inner: F, path: &str) -> FaultyFile<F, I> {
        FaultyFile { inner, volume: self.clone(), path: path.to_owned() }
    }
}

impl<I: FaultInjector + 'static> Volume for FaultyVolume<I> {
    fn display(&self, path: &str) -> PathBuf {
        self.inner.display(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.call("make_dir", path, || self.inner.make_dir(path))
    }

    fn make_private_dir(&self, path: &str) -> io::Result<()> {
        self.call("make_dir", path, || self.inner.make_private_dir(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.call("list", path, || self.inner.list(path))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let inner = self.call("create", path, || self.inner.create(path))?;
        Ok(Box::new(self.open_file(inner, path)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let inner = self.call("open", path, || self.inner.open(path))?;
        Ok(Box::new(self.open_file(inner, path)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let call = VolumeCall { target: Some(to.to_owned()), ..VolumeCall::on("rename", from) };
        self.call_with_partial(call, || self.inner.rename(from, to), || ())
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

/// An open file of a [`FaultyVolume`].
struct FaultyFile<F, I> {
    inner: F,
    volume: FaultyVolume<I>,
    path: String,
}

impl<I: FaultInjector> FileWriter for FaultyFile<Box<dyn FileWriter>, I> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let inner = RefCell::new(&mut self.inner);
        let partial = || drop(inner.borrow_mut().write(&bytes[..bytes.len() / 2]));
        let call = VolumeCall::on("write", &self.path);
        self.volume.call_with_partial(call, || inner.borrow_mut().write(bytes), partial)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.call("sync", &self.path, || self.inner.sync())
    }
}

impl<I: FaultInjector> FileReader for FaultyFile<Box<dyn FileReader>, I> {
    fn size(&self) -> io::Result<u64> {
        self.volume.call("size", &self.path, || self.inner.size())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let call = VolumeCall { bytes_read: buffer.len() as u64, ..VolumeCall::on("read_at", &self.path) };
        self.volume.call_with_partial(call, || self.inner.read_at(offset, buffer), || ())
    }
}
