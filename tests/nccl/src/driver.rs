//! The functions of the CUDA driver.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const DEVICE_UNAVAILABLE: c_int = 46;
const NOT_READY: c_int = 600;

/// The device whose context was retained last.
static DEVICE: AtomicI32 = AtomicI32::new(0);

pub(crate) fn device() -> c_int {
    DEVICE.load(Ordering::Relaxed)
}

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// A stream: a thread that runs its tasks in order.
pub(crate) struct Stream {
    tasks: mpsc::Sender<Task>,
}

impl Stream {
    fn start() -> Stream {
        let (tasks, given) = mpsc::channel::<Task>();
        std::thread::spawn(move || given.into_iter().for_each(|task| task()));
        Stream { tasks }
    }

    pub(crate) fn give(&self, task: Task) {
        self.tasks.send(task).unwrap();
    }
}

/// How often it was recorded, and the last of these recordings that is complete.
#[derive(Default)]
struct Event {
    counts: Mutex<(u64, u64)>,
    completed: Condvar,
}

impl Event {
    fn complete(&self, recording: u64) {
        let mut counts = self.counts.lock().unwrap();
        counts.1 = counts.1.max(recording);
        self.completed.notify_all();
    }

    fn wait(&self, recording: u64) {
        let counts = self.counts.lock().unwrap();
        drop(self.completed.wait_while(counts, |counts| counts.1 < recording).unwrap());
    }
}

/// The stream of a handle; none for the default one.
///
/// # Safety
/// It is null, or from `cuStreamCreate` and not destroyed.
pub(crate) unsafe fn stream<'a>(handle: *mut c_void) -> Option<&'a Stream> {
    // SAFETY: the caller's promise.
    unsafe { handle.cast::<Stream>().as_ref() }
}

/// # Safety
/// It is from `cuEventCreate` and not destroyed.
unsafe fn event(handle: *mut c_void) -> Arc<Event> {
    let handle = handle.cast::<Event>().cast_const();
    // SAFETY: the handle is one count of this event, which stays.
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *version = 13_000 };
    SUCCESS
}

/// It has no device of NVIDIA's, and says so.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> c_int {
    let own = c"stand-in for a GPU".to_bytes_with_nul();
    if (length as usize) < own.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer of `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr().cast(), name, own.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *count = crate::fault::devices() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, index: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *device = index };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    if crate::fault::is_busy() {
        return DEVICE_UNAVAILABLE;
    }
    DEVICE.store(device, Ordering::Relaxed);
    // SAFETY: the caller's pointer; the handle is never followed.
    unsafe { *context = std::ptr::dangling_mut() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    if flags != 1 {
        return INVALID_VALUE; // it would wait for the default stream
    }
    // SAFETY: the caller's pointer.
    unsafe { *stream = Box::into_raw(Box::new(Stream::start())).cast() };
    SUCCESS
}

/// Its tasks still run.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    // SAFETY: from `cuStreamCreate`, and not used again.
    drop(unsafe { Box::from_raw(stream.cast::<Stream>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> c_int {
    // SAFETY: a stream's handle.
    if let Some(stream) = unsafe { stream(handle) } {
        let (done, wait) = mpsc::channel::<()>();
        stream.give(Box::new(move || drop(done)));
        let _ = wait.recv();
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(handle: *mut c_void, waited: *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: handles of an event and a stream.
    let (event, stream) = unsafe { (event(waited), stream(handle)) };
    let recording = event.counts.lock().unwrap().0;
    match stream {
        None => event.wait(recording),
        Some(stream) => stream.give(Box::new(move || event.wait(recording))),
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *event = Arc::into_raw(Arc::<Event>::default()).cast_mut().cast() };
    SUCCESS
}

/// Who waits for it still does.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    // SAFETY: from `cuEventCreate`, and not used again.
    drop(unsafe { Arc::from_raw(event.cast::<Event>().cast_const()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(recorded: *mut c_void, handle: *mut c_void) -> c_int {
    // SAFETY: handles of an event and a stream.
    let (event, stream) = unsafe { (event(recorded), stream(handle)) };
    let recording = {
        let mut counts = event.counts.lock().unwrap();
        counts.0 += 1;
        counts.0
    };
    match stream {
        None => event.complete(recording),
        Some(stream) => stream.give(Box::new(move || event.complete(recording))),
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(queried: *mut c_void) -> c_int {
    // SAFETY: an event's handle.
    let event = unsafe { event(queried) };
    let (recorded, completed) = *event.counts.lock().unwrap();
    if completed < recorded { NOT_READY } else { SUCCESS }
}

/// All memory is the device's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, _address: u64) -> c_int {
    if attribute != 2 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointer, to an unsigned integer for this attribute.
    unsafe { *data.cast::<c_uint>() = 2 };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *text = c"an error of the stand-in for the CUDA driver".as_ptr() };
    SUCCESS
}
