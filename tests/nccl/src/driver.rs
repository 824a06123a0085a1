//! Simulates functions of the CUDA driver: contexts, streams and events.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, mpsc};
use std::time::Instant;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
const DEVICE_UNAVAILABLE: c_int = 46;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;

/// The device whose context was retained last.
static DEVICE: AtomicI32 = AtomicI32::new(0);

pub(crate) fn device() -> c_int {
    DEVICE.load(Ordering::Relaxed)
}

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// A stream: a thread that runs its tasks in order. With `NCCL_STAND_IN_ONE_QUEUE`, all streams share one thread.
#[derive(Clone)]
pub(crate) struct Stream {
    tasks: mpsc::Sender<Task>,
}

impl Stream {
    fn start() -> Stream {
        if crate::fault::has_one_queue() { ONE_QUEUE.clone() } else { Stream::of_a_thread() }
    }

    fn of_a_thread() -> Stream {
        let (tasks, given) = mpsc::channel::<Task>();
        std::thread::spawn(move || given.into_iter().for_each(|task| task()));
        Stream { tasks }
    }

    pub(crate) fn give(&self, task: Task) {
        self.tasks.send(task).unwrap();
    }

    /// Waits until all tasks that the stream has received are done.
    fn synchronize(&self) {
        let (done, wait) = mpsc::channel::<()>();
        self.give(Box::new(move || drop(done)));
        let _ = wait.recv();
    }
}

/// The queue that all streams share with `NCCL_STAND_IN_ONE_QUEUE`.
static ONE_QUEUE: LazyLock<Stream> = LazyLock::new(Stream::of_a_thread);

/// Runs a task of the default stream on the calling thread. With `NCCL_STAND_IN_ONE_QUEUE`, waits for all earlier tasks
/// first.
pub(crate) fn run_on_default_stream(task: impl FnOnce()) {
    if crate::fault::has_one_queue() {
        ONE_QUEUE.synchronize();
    }
    task();
}

#[derive(Default)]
struct CudaEvent {
    recordings: Mutex<Recordings>,
    completed: Condvar,
}

#[derive(Default)]
struct Recordings {
    count: u64,
    /// The number of the last complete recording.
    completed: u64,
    completed_at: Option<Instant>,
}

impl CudaEvent {
    /// Counts a new recording. Returns its number.
    fn begin(&self) -> u64 {
        let mut recordings = self.recordings.lock().unwrap();
        recordings.count += 1;
        recordings.count
    }

    fn complete(&self, recording: u64) {
        let mut recordings = self.recordings.lock().unwrap();
        if recording > recordings.completed {
            (recordings.completed, recordings.completed_at) = (recording, Some(Instant::now()));
        }
        self.completed.notify_all();
    }

    fn last(&self) -> u64 {
        self.recordings.lock().unwrap().count
    }

    fn wait(&self, recording: u64) {
        let recordings = self.recordings.lock().unwrap();
        drop(self.completed.wait_while(recordings, |recordings| recordings.completed < recording).unwrap());
    }

    /// Returns the time at which the last recording completed, or `None` if it has not completed.
    fn completed_at(&self) -> Option<Instant> {
        let recordings = self.recordings.lock().unwrap();
        recordings.completed_at.filter(|_| recordings.completed == recordings.count)
    }
}

/// Returns the stream of a handle, or `None` for the default stream.
///
/// # Safety
/// The handle is null, or is from `cuStreamCreate` and not destroyed.
pub(crate) unsafe fn stream<'a>(handle: *mut c_void) -> Option<&'a Stream> {
    // SAFETY: by the caller's contract the handle is null or a stream's.
    unsafe { handle.cast::<Stream>().as_ref() }
}

/// Returns the event of a handle.
///
/// # Safety
/// The handle is from `cuEventCreate` and not destroyed.
unsafe fn event(handle: *mut c_void) -> Arc<CudaEvent> {
    let handle = handle.cast::<CudaEvent>().cast_const();
    // SAFETY: the handle holds one reference to this event, which remains.
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
    // SAFETY: the pointer is the caller's.
    unsafe { *version = 13_000 };
    SUCCESS
}

/// Returns a name that shows that the device is not a real GPU.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> c_int {
    let own = c"stand-in for a GPU".to_bytes_with_nul();
    if (length as usize) < own.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr().cast(), name, own.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *count = crate::fault::devices() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, index: c_int) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *device = index };
    SUCCESS
}

/// Returns 0 for every attribute of the device.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, _attribute: c_int, _device: c_int) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *value = 0 };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    if crate::fault::is_busy() {
        return DEVICE_UNAVAILABLE;
    }
    DEVICE.store(device, Ordering::Relaxed);
    // SAFETY: the pointer is the caller's; the handle is never dereferenced.
    unsafe { *context = std::ptr::dangling_mut() };
    SUCCESS
}

thread_local! {
    static CONTEXT: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    CONTEXT.set(context);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *context = CONTEXT.get() };
    SUCCESS
}

/// Calls `function` if this thread has a context, which most functions of the driver need.
pub(crate) fn in_context(function: impl FnOnce() -> c_int) -> c_int {
    if CONTEXT.get().is_null() { INVALID_CONTEXT } else { function() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    in_context(|| {
        if flags != 1 {
            return INVALID_VALUE; // such a stream would wait for the default stream
        }
        // SAFETY: the pointer is the caller's.
        unsafe { *stream = Box::into_raw(Box::new(Stream::start())).cast() };
        SUCCESS
    })
}

/// Belongs to the CUDA runtime, unlike the other functions of this file, which belong to the driver. The test of
/// `tests/host-waits` calls this function, since that library records calls of the runtime.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamSynchronize(stream: *mut c_void) -> c_int {
    // SAFETY: both functions have the same contract.
    unsafe { cuStreamSynchronize(stream) }
}

/// Destroys the handle. Tasks that the stream has received still run.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    // SAFETY: the handle is from `cuStreamCreate` and is not used again.
    drop(unsafe { Box::from_raw(stream.cast::<Stream>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> c_int {
    in_context(|| {
        // SAFETY: the handle is a stream's.
        if let Some(stream) = unsafe { stream(handle) } {
            stream.synchronize();
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(handle: *mut c_void, waited: *mut c_void, _flags: c_uint) -> c_int {
    in_context(|| {
        // SAFETY: the handles are those of an event and a stream.
        let (event, stream) = unsafe { (event(waited), stream(handle)) };
        let recording = event.last();
        match stream {
            None => run_on_default_stream(|| event.wait(recording)),
            Some(stream) => stream.give(Box::new(move || event.wait(recording))),
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    in_context(|| {
        // SAFETY: the pointer is the caller's.
        unsafe { *event = Arc::into_raw(Arc::<CudaEvent>::default()).cast_mut().cast() };
        SUCCESS
    })
}

/// Destroys the handle. A thread that waits for the event continues to wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    // SAFETY: the handle is from `cuEventCreate` and is not used again.
    drop(unsafe { Arc::from_raw(event.cast::<CudaEvent>().cast_const()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(recorded: *mut c_void, handle: *mut c_void) -> c_int {
    in_context(|| {
        // SAFETY: the handles are those of an event and a stream.
        let (event, stream) = unsafe { (event(recorded), stream(handle)) };
        let recording = event.begin();
        match stream {
            None => run_on_default_stream(|| event.complete(recording)),
            Some(stream) => stream.give(Box::new(move || event.complete(recording))),
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(queried: *mut c_void) -> c_int {
    in_context(|| {
        // SAFETY: the handle is an event's.
        let event = unsafe { event(queried) };
        if event.last() > 0 && event.completed_at().is_none() { NOT_READY } else { SUCCESS }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(waited: *mut c_void) -> c_int {
    in_context(|| {
        // SAFETY: the handle is an event's.
        let event = unsafe { event(waited) };
        event.wait(event.last());
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) -> c_int {
    in_context(|| {
        // SAFETY: the handles are events'.
        let (start, end) = unsafe { (event(start), event(end)) };
        let (Some(start), Some(end)) = (start.completed_at(), end.completed_at()) else { return NOT_READY };
        let seconds =
            end.saturating_duration_since(start).as_secs_f64() - start.saturating_duration_since(end).as_secs_f64();
        // SAFETY: the pointer is the caller's.
        unsafe { *milliseconds = (1e3 * seconds) as f32 };
        SUCCESS
    })
}

/// Fails, since the device runs no kernels.
#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(_module: *mut *mut c_void, _image: *const c_void) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(_function: *mut *mut c_void, _module: *mut c_void, _name: *const c_char) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(_module: *mut c_void) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(_function: *mut c_void) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the pointer is the caller's.
    unsafe { *text = c"an error of the stand-in for the CUDA driver".as_ptr() };
    SUCCESS
}
