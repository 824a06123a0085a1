//! A communicator of two ranks: rank 0 sends, rank 1 receives.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::time::{Duration, Instant};

use stagecoach_kernels::device::CudaStream;
use tch::Tensor;

use super::library::{Config, IN_PROGRESS, INVALID_USAGE, Nccl, RawCommunicator, RawUniqueId, SUCCESS, UINT8};

/// The identifier with which both ends of a communicator find each other. The identifier contains an address.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct UniqueId(Vec<u8>);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

impl UniqueId {
    /// Generates a new identifier.
    pub(super) fn generate(nccl: &'static Nccl) -> Result<UniqueId, String> {
        let mut id = RawUniqueId([0; 128]);
        // SAFETY: the call writes one identifier.
        let result = unsafe { (nccl.functions.get_unique_id)(&mut id) };
        check(nccl, ptr::null_mut(), "ncclGetUniqueId", result).map(|()| UniqueId(id.0.to_vec()))
    }

    /// Returns the identifier's bytes, as a greeting carries them.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the identifier that a peer sent; `None` if the bytes are not an identifier.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<UniqueId> {
        (bytes.len() == size_of::<RawUniqueId>()).then(|| UniqueId(bytes.to_vec()))
    }

    fn raw(&self) -> RawUniqueId {
        let mut raw = [0; 128];
        raw.copy_from_slice(&self.0);
        RawUniqueId(raw)
    }
}

/// An end of a communicator. Each value is a rank in NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommunicatorEnd {
    Sender = 0,
    Receiver = 1,
}

impl CommunicatorEnd {
    fn peer(self) -> c_int {
        match self {
            CommunicatorEnd::Sender => CommunicatorEnd::Receiver as c_int,
            CommunicatorEnd::Receiver => CommunicatorEnd::Sender as c_int,
        }
    }
}

/// The interval between polls of a communicator with an operation in progress.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One end of a communicator, used by one thread at a time. Dropping this value aborts the communicator.
#[derive(Debug)]
pub(crate) struct Communicator {
    nccl: &'static Nccl,
    end: CommunicatorEnd,
    raw: RawCommunicator,
}

// SAFETY: NCCL's functions may be called on any thread, but only by one thread at a time for one communicator.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Starts to connect; [`Communicator::is_ready`] returns whether the connection is complete.
    pub(crate) fn begin(nccl: &'static Nccl, id: &UniqueId, end: CommunicatorEnd) -> Result<Communicator, String> {
        let (mut raw, mut config) = (ptr::null_mut(), Config::non_blocking());
        // SAFETY: the call writes one handle, and copies the configuration.
        let result = unsafe { (nccl.functions.init)(&mut raw, 2, id.raw(), end as c_int, &mut config) };
        let communicator = Communicator { nccl, end, raw };
        communicator.begun("ncclCommInitRankConfig", result).map(|()| communicator)
    }

    /// Whether the operation in progress is complete.
    ///
    /// # Errors
    /// If an operation has failed at this end or at the peer.
    pub(super) fn is_ready(&self) -> Result<bool, String> {
        let (result, state) = self.async_error();
        self.begun("ncclCommGetAsyncError", result)?;
        self.begun("NCCL", state).map(|()| state == SUCCESS)
    }

    /// Whether NCCL rejects the communicator as invalid usage, for example because both ends use the same GPU of one
    /// host.
    pub(super) fn has_invalid_usage(&self) -> bool {
        let (result, state) = self.async_error();
        [result, state].contains(&INVALID_USAGE)
    }

    /// Returns two values: the result of the call `ncclCommGetAsyncError`, and the state of the communicator that this
    /// call reports.
    fn async_error(&self) -> (c_int, c_int) {
        let mut state = SUCCESS;
        // SAFETY: the call writes one integer.
        let result = unsafe { (self.nccl.functions.get_async_error)(self.raw, &mut state) };
        (result, state)
    }

    /// Queues a send or receive of a tensor's memory on `stream`, and waits until NCCL has accepted the operation.
    /// Calls `check_interrupt` repeatedly during the wait, and returns its error.
    pub(super) fn transfer(
        &self,
        tensor: &Tensor,
        stream: &CudaStream,
        check_interrupt: &dyn Fn() -> Result<(), String>,
    ) -> Result<(), String> {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        let (functions, peer) = (&self.nccl.functions, self.end.peer());
        let (address, raw) = (tensor.data_ptr(), self.raw);
        let call = match self.end {
            CommunicatorEnd::Sender => "ncclSend",
            CommunicatorEnd::Receiver => "ncclRecv",
        };
        // SAFETY: the memory belongs to the tensor. The caller keeps the tensor, and does not access the memory of a
        // receive, until an event after this call is complete.
        let result = unsafe {
            match self.end {
                CommunicatorEnd::Sender => (functions.send)(address, bytes, UINT8, peer, raw, stream.raw()),
                CommunicatorEnd::Receiver => (functions.receive)(address, bytes, UINT8, peer, raw, stream.raw()),
            }
        };
        self.begun(call, result)?;
        while !self.is_ready()? {
            check_interrupt()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Frees the communicator once the network has sent all its messages, which may be later than the end of the
    /// stream's work. At the deadline, aborts the communicator.
    pub(super) fn finish(mut self, deadline: Instant) {
        // SAFETY: the communicator is valid.
        let result = unsafe { (self.nccl.functions.finalize)(self.raw) };
        if self.begun("ncclCommFinalize", result).is_err() {
            return;
        }
        loop {
            match self.is_ready() {
                Ok(true) => break,
                Ok(false) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                _ => return,
            }
        }
        // SAFETY: the communicator is finalized, and not used again.
        unsafe { (self.nccl.functions.destroy)(std::mem::replace(&mut self.raw, ptr::null_mut())) };
    }

    fn begun(&self, call: &str, result: c_int) -> Result<(), String> {
        match result {
            IN_PROGRESS => Ok(()),
            result => check(self.nccl, self.raw, call, result),
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the communicator is not used again; the abort ends its kernels on the device.
            unsafe { (self.nccl.functions.abort)(self.raw) };
        }
    }
}

fn check(nccl: &'static Nccl, raw: RawCommunicator, call: &str, result: c_int) -> Result<(), String> {
    if result == SUCCESS {
        return Ok(());
    }
    // SAFETY: both functions return strings of the library. The text of the last error stays valid until the next error
    // on this thread.
    let [why, last] = unsafe { [(nccl.errors.get_error_string)(result), (nccl.errors.get_last_error)(raw)] };
    let text = |text: *const c_char| {
        // SAFETY: the pointer is null, or a null-terminated string of the library.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
    };
    let last = text(last).filter(|last| !last.is_empty()).map(|last| format!(" ({last})"));
    Err(format!("{call}: {}{}", text(why).unwrap_or_default(), last.unwrap_or_default()))
}
