//! Simulates functions of NCCL, for communicators of two ranks, over Unix sockets.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use crate::fault::{self, NcclFault};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const SYSTEM_ERROR: c_int = 2;
const IN_PROGRESS: c_int = 7;
const BYTES: c_int = 1;

/// The byte that fills a receive buffer until the receive is complete. Such bytes are NaN in fp32 and bf16.
const NOT_A_NUMBER: u8 = 0xff;

/// The first fields of `ncclConfig_t`.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
struct UniqueId([u8; 128]);

impl UniqueId {
    fn address(&self) -> SocketAddr {
        let name = [b"stagecoach-nccl-stand-in-".as_slice(), &self.0[..16]].concat();
        SocketAddr::from_abstract_name(name).unwrap()
    }
}

/// The listeners for identifiers from `ncclGetUniqueId`. Rank 0 of a communicator removes its listener from this map.
static LISTENERS: LazyLock<Mutex<HashMap<UniqueId, UnixListener>>> = LazyLock::new(Mutex::default);

/// One end of a communicator.
struct Communicator {
    status: Mutex<Status>,
    changed: Condvar,
}

struct Status {
    /// The result of `ncclCommGetAsyncError`.
    state: c_int,
    socket: Option<UnixStream>,
    is_aborted: bool,
    /// Whether a stream has received the first operation, during which NCCL connects.
    has_begun: bool,
    /// The number of operations that streams have not finished.
    operations: usize,
}

impl Communicator {
    fn new() -> Communicator {
        let status = Status { state: IN_PROGRESS, socket: None, is_aborted: false, has_begun: false, operations: 0 };
        Communicator { status: Mutex::new(status), changed: Condvar::new() }
    }

    fn update<T>(&self, change: impl FnOnce(&mut Status) -> T) -> T {
        let changed = change(&mut self.status.lock().unwrap());
        self.changed.notify_all();
        changed
    }

    fn wait_until(&self, mut condition: impl FnMut(&mut Status) -> bool) {
        let status = self.status.lock().unwrap();
        drop(self.changed.wait_while(status, |status| !condition(status)).unwrap());
    }

    /// Waits until the communicator is aborted.
    fn hang(&self) {
        self.wait_until(|status| status.is_aborted);
    }

    fn fail(&self, state: c_int) {
        self.update(|status| status.state = state);
        self.hang();
    }

    /// Runs an operation on the thread of its stream.
    fn operate(&self, fault: NcclFault, operation: impl FnOnce(&mut UnixStream) -> Result<(), c_int>) {
        let socket = self.update(|status| match status.is_aborted {
            true => None,
            false => status.socket.as_ref().map(|socket| socket.try_clone().unwrap()),
        });
        if let Some(mut socket) = socket {
            match fault {
                NcclFault::Error => self.fail(SYSTEM_ERROR),
                NcclFault::Hang => self.hang(),
                NcclFault::None => {
                    if let Err(state) = operation(&mut socket) {
                        self.fail(state);
                    }
                }
            }
        }
        self.update(|status| status.operations -= 1);
    }
}

/// # Safety
/// The handle is from `ncclCommInitRankConfig`, and neither destroyed nor aborted.
unsafe fn communicator(handle: *mut c_void) -> Arc<Communicator> {
    let handle = handle.cast::<Communicator>().cast_const();
    // SAFETY: the handle holds one reference to the communicator, which remains.
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *version = fault::nccl_version() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut new = UniqueId([0; 128]);
    getrandom::fill(&mut new.0[..16]).unwrap();
    LISTENERS.lock().unwrap().insert(new, UnixListener::bind_addr(&new.address()).unwrap());
    // SAFETY: the pointer is the caller's.
    unsafe { *id = new };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    handle: *mut *mut c_void,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    // SAFETY: the pointer is the caller's.
    let config = unsafe { &*config };
    // the stand-in supports configurations of version 2.18 and later
    let is_known = config.magic == 0xcafe_beef && config.version >= 21_800 && config.size >= 48;
    if ranks != 2 || !(0..2).contains(&rank) || config.blocking != 0 || !is_known {
        return INVALID_ARGUMENT;
    }
    let communicator = Arc::new(Communicator::new());
    // SAFETY: the pointer is the caller's.
    unsafe { *handle = Arc::into_raw(communicator.clone()).cast_mut().cast() };
    // the process that made the identifier has rank 0; rank 1 may be in the same process
    let listener = if rank == 0 { LISTENERS.lock().unwrap().remove(&id) } else { None };
    if rank == 0 && listener.is_none() {
        return INVALID_ARGUMENT;
    }
    if fault::never_connects() {
        return IN_PROGRESS;
    }
    std::thread::spawn(move || {
        let mut socket = None;
        while socket.is_none() && !communicator.update(|status| status.is_aborted) {
            socket = match &listener {
                Some(listener) => {
                    listener.set_nonblocking(true).unwrap();
                    listener.accept().ok().map(|(socket, _)| socket)
                }
                None => UnixStream::connect_addr(&id.address()).ok(),
            };
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(mut socket) = socket {
            socket.set_nonblocking(false).unwrap();
            match share_a_gpu(&mut socket) {
                true => communicator.update(|status| status.state = INVALID_USAGE),
                false => communicator.update(|status| (status.socket, status.state) = (Some(socket), SUCCESS)),
            }
        }
    });
    IN_PROGRESS
}

/// Whether the other rank is another process of this host on the same device, which NCCL refuses. If both ranks are in
/// one process, they are two stages of a test, and this function returns false.
fn share_a_gpu(socket: &mut UnixStream) -> bool {
    let host = std::env::var("NCCL_HOSTID").unwrap_or_default();
    let own = format!("{host}\n{}", crate::driver::device());
    let greeting = [std::process::id().to_le_bytes(), (own.len() as u32).to_le_bytes()].concat();
    let sent = socket.write_all(&greeting).and_then(|()| socket.write_all(own.as_bytes()));
    let mut read = |length: usize| {
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes).map(|()| bytes)
    };
    let answer = sent.and_then(|()| read(8)).and_then(|greeting| {
        let length = u32::from_le_bytes(greeting[4..].try_into().unwrap()) as usize;
        Ok((greeting[..4] == std::process::id().to_le_bytes(), read(length)?))
    });
    // if the other process has ended, the first message reports the error
    answer.is_ok_and(|(is_this_process, peer)| !is_this_process && peer == own.as_bytes())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, state: *mut c_int) -> c_int {
    // SAFETY: the handle is a communicator's, and the pointer is the caller's.
    unsafe { *state = communicator(handle).update(|status| status.state) };
    SUCCESS
}

/// Gives an operation to a stream. For the first operation of a communicator, returns `ncclInProgress`, because NCCL
/// connects the ranks during this operation.
///
/// # Safety
/// The handles are those of a communicator and a stream.
unsafe fn give(
    handle: *mut c_void,
    stream: *mut c_void,
    (kind, peer): (c_int, c_int),
    operation: impl FnOnce(&mut UnixStream) -> Result<(), c_int> + Send + 'static,
) -> c_int {
    // SAFETY: by the caller's contract the handles are those of a communicator and a stream.
    let (communicator, stream) = unsafe { (communicator(handle), crate::driver::stream(stream)) };
    let Some(stream) = stream.filter(|_| kind == BYTES && (0..2).contains(&peer)) else { return INVALID_ARGUMENT };
    let first = communicator.update(|status| match status.state {
        SUCCESS => {
            status.operations += 1;
            let first = !std::mem::replace(&mut status.has_begun, true);
            status.state = if first { IN_PROGRESS } else { SUCCESS };
            Ok(first)
        }
        // the caller must first wait until the last call has completed
        IN_PROGRESS => Err(INVALID_USAGE),
        failed => Err(failed),
    });
    let first = match first {
        Ok(first) => first,
        Err(failed) => return failed,
    };
    let (fault, later) = (fault::of_operation(), communicator.clone());
    stream.give(Box::new(move || communicator.operate(fault, operation)));
    if !first {
        return SUCCESS;
    }
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2));
        later.update(|status| {
            if status.state == IN_PROGRESS {
                status.state = SUCCESS;
            }
        });
    });
    IN_PROGRESS
}

/// An address of the caller's memory that a task uses on another thread.
struct Address(*mut u8);

// SAFETY: as with NCCL, the caller of a send or receive keeps the memory until the operation has completed.
unsafe impl Send for Address {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    buffer: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let address = Address(buffer.cast_mut().cast());
    let operation = move |socket: &mut UnixStream| {
        let address = address;
        fault::delay();
        // SAFETY: the caller of the send keeps the memory, see `Address`.
        let bytes = unsafe { std::slice::from_raw_parts(address.0, count) };
        let sent = socket.write_all(&(count as u64).to_le_bytes()).and_then(|()| socket.write_all(bytes));
        // NCCL sends a message larger than its buffers only while the peer receives it
        let received = sent.and_then(|()| socket.read_exact(&mut [0]));
        received.map_err(|_| REMOTE_ERROR)
    };
    // SAFETY: the handles are the caller's.
    unsafe { give(handle, stream, (kind, peer), operation) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    buffer: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let address = Address(buffer.cast());
    let operation = move |socket: &mut UnixStream| {
        let address = address;
        // SAFETY: the caller of the receive keeps the memory, see `Address`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address.0, count) };
        bytes.fill(NOT_A_NUMBER);
        fault::delay();
        let (mut length, mut received) = ([0; 8], vec![0; count]);
        socket.read_exact(&mut length).map_err(|_| REMOTE_ERROR)?;
        if u64::from_le_bytes(length) != count as u64 {
            return Err(INVALID_USAGE);
        }
        socket.read_exact(&mut received).map_err(|_| REMOTE_ERROR)?;
        bytes.copy_from_slice(&received);
        socket.write_all(&[1]).map_err(|_| REMOTE_ERROR)
    };
    // SAFETY: the handles are the caller's.
    unsafe { give(handle, stream, (kind, peer), operation) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(handle: *mut c_void) -> c_int {
    // SAFETY: the handle is a communicator's.
    let communicator = unsafe { communicator(handle) };
    let state = communicator.update(|status| {
        if status.state == SUCCESS {
            status.state = IN_PROGRESS;
        }
        status.state
    });
    if state == IN_PROGRESS {
        std::thread::spawn(move || {
            communicator.wait_until(|status| status.operations == 0 || status.is_aborted);
            communicator.update(|status| status.state = SUCCESS);
        });
    }
    state
}

/// Destroys a communicator. Aborts the process if operations are not complete.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(handle: *mut c_void) -> c_int {
    // SAFETY: the handle is from `ncclCommInitRankConfig` and is not used again.
    let communicator = unsafe { Arc::from_raw(handle.cast::<Communicator>().cast_const()) };
    assert_eq!(
        communicator.update(|status| status.operations),
        0,
        "ncclCommDestroy was called while operations were not complete"
    );
    SUCCESS
}

/// Aborts the communicator's operations, including those that wait for a peer, and waits for their end.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(handle: *mut c_void) -> c_int {
    // SAFETY: the handle is from `ncclCommInitRankConfig` and is not used again.
    let communicator = unsafe { Arc::from_raw(handle.cast::<Communicator>().cast_const()) };
    communicator.update(|status| {
        status.is_aborted = true;
        if let Some(socket) = &status.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    });
    communicator.wait_until(|status| status.operations == 0);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    match result {
        SYSTEM_ERROR => c"unhandled system error",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        _ => c"an error of the stand-in for NCCL",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_handle: *mut c_void) -> *const c_char {
    c"".as_ptr()
}
