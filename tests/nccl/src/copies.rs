//! Simulates the CUDA driver's pinned memory, and its copies between the host and the device. As on a GPU, a copy
//! completes some time after the call that starts it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex};

use crate::driver::{INVALID_VALUE, SUCCESS, in_context, run_on_default_stream, stream};
use crate::fault;

/// `CU_MEMORYTYPE_HOST`.
const HOST_MEMORY: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY_REGISTERED: c_int = 712;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
const NOT_REGISTERED: c_int = 713;

/// The pinned ranges by the address of their first byte.
static PINNED: LazyLock<Mutex<BTreeMap<usize, Pinned>>> = LazyLock::new(Mutex::default);

struct Pinned {
    end: usize,
    /// The number of copies from or to the range that have not completed.
    copies: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, _flags: u32) -> c_int {
    in_context(|| {
        let (begin, end) = (start as usize, start as usize + bytes);
        if fault::pins_nothing() {
            return OUT_OF_MEMORY;
        }
        if bytes == 0 || !begin.is_multiple_of(4096) || !bytes.is_multiple_of(4096) {
            return INVALID_VALUE; // stricter than the driver, which rounds the range to whole pages
        }
        let mut pinned = PINNED.lock().unwrap();
        if pinned.range(..end).next_back().is_some_and(|(_, before)| before.end > begin) {
            return ALREADY_REGISTERED;
        }
        pinned.insert(begin, Pinned { end, copies: 0 });
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> c_int {
    in_context(|| match PINNED.lock().unwrap().remove(&(start as usize)) {
        None => NOT_REGISTERED,
        Some(Pinned { copies: 0, .. }) => SUCCESS,
        Some(_) => {
            eprintln!("the stand-in for CUDA: memory is unpinned before the copies from or to it are done");
            std::process::abort();
        }
    })
}

fn is_pinned(address: usize) -> bool {
    PINNED.lock().unwrap().range(..=address).next_back().is_some_and(|(_, pinned)| address < pinned.end)
}

/// Starts a copy between the device and pinned memory at `host`. The target is NaN until the copy has completed.
///
/// # Safety
/// `to` and `from` have `bytes` bytes and stay valid until the copy has completed. `handle` is the handle of a stream,
/// or null for the default stream.
unsafe fn copy(to: usize, from: usize, host: usize, bytes: usize, handle: *mut c_void) -> c_int {
    let begin = {
        let mut pinned = PINNED.lock().unwrap();
        let Some((&begin, pinned)) = pinned.range_mut(..=host).next_back() else { return INVALID_VALUE };
        if pinned.end < host + bytes {
            return INVALID_VALUE; // the driver would accept such a copy, and the host would wait for it
        }
        pinned.copies += 1;
        begin
    };
    let task = move || {
        // SAFETY: by the caller's contract the target has `bytes` bytes.
        unsafe { std::ptr::write_bytes(to as *mut u8, 0xff, bytes) };
        fault::delay();
        // SAFETY: by the caller's contract both ranges have `bytes` bytes; two tensors do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        if let Some(pinned) = PINNED.lock().unwrap().get_mut(&begin) {
            pinned.copies -= 1;
        }
    };
    // SAFETY: by the caller's contract the handle is a stream's.
    match unsafe { stream(handle) } {
        None => run_on_default_stream(task),
        Some(stream) => stream.give(Box::new(task)),
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) -> c_int {
    // SAFETY: the caller's contract is that of `copy`.
    in_context(|| unsafe { copy(to as usize, from as usize, to as usize, bytes, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) -> c_int {
    // SAFETY: the caller's contract is that of `copy`.
    in_context(|| unsafe { copy(to as usize, from as usize, from as usize, bytes, stream) })
}

/// Reports pinned memory as the host's, and all other memory as the device's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: u64) -> c_int {
    if attribute != 2 {
        return INVALID_VALUE;
    }
    // SAFETY: the pointer is the caller's; for this attribute it points to an unsigned integer.
    unsafe { *data.cast::<c_uint>() = if is_pinned(address as usize) { HOST_MEMORY } else { DEVICE_MEMORY } };
    SUCCESS
}
