//! A library for `LD_PRELOAD` that records when the host waits for a GPU. It defines the functions of the CUDA runtime
//! in which the host waits. Each function appends its name and the id of the calling thread to the file that the
//! environment variable `HOST_WAITS` names, and then calls the function of the runtime. libtorch waits in functions of
//! the runtime. The trainer itself waits in functions of the driver, which this library does not record.

use std::ffi::{CStr, c_int, c_void};
use std::fs::OpenOptions;
use std::io::Write;

/// Records a call, and returns the runtime's function of this name.
fn note(name: &CStr) -> *mut c_void {
    if let Some(path) = std::env::var_os("HOST_WAITS") {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        let thread = std::thread::current().id();
        file.write_all(format!("{} {thread:?}\n", name.to_str().unwrap()).as_bytes()).unwrap();
    }
    // SAFETY: this looks up a name in the libraries that come after this one.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!function.is_null(), "{name:?} is called, and no library has it");
    function
}

macro_rules! waits {
    ($($name:ident($($argument:ident: $type:ty),*) = $symbol:literal;)*) => {$(
        /// The signature is that of the CUDA runtime.
        #[allow(non_snake_case, reason = "the runtime's name")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the runtime's function of this name has this type.
            let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(note($symbol)) };
            // SAFETY: the arguments are the caller's.
            unsafe { function($($argument),*) }
        }
    )*};
}

waits! {
    cudaDeviceSynchronize() = c"cudaDeviceSynchronize";
    cudaStreamSynchronize(stream: *mut c_void) = c"cudaStreamSynchronize";
    cudaEventSynchronize(event: *mut c_void) = c"cudaEventSynchronize";
    cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) = c"cudaMemcpy";
}
