//! Tests the library `tests/host-waits`, with which `make gpu` counts how often the host waits for the GPU in a step.
//! The test preloads the library before the stand-in for the CUDA driver.

use std::ffi::c_void;
use std::process::Command;

use stagecoach_tests::stagecoach;

#[test]
fn a_wait_for_the_gpu_is_noted_and_passed_on_to_the_runtime() {
    const NAME: &str = "host_waits::a_wait_for_the_gpu_is_noted_and_passed_on_to_the_runtime";
    const INVALID_CONTEXT: i32 = 201; // the stand-in's answer on a thread without a context
    if std::env::var_os("HOST_WAITS").is_some() {
        // SAFETY: the function has this type, and it ignores its argument on a thread without a context.
        let answer = unsafe {
            let function = libc::dlsym(libc::RTLD_DEFAULT, c"cudaStreamSynchronize".as_ptr());
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> i32>(function)(std::ptr::null_mut())
        };
        assert_eq!(answer, INVALID_CONTEXT);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let noted = folder.path().join("noted");
    let library = |name: &str| stagecoach().with_file_name(name).display().to_string();
    let preloaded = [library("libhost_waits.so"), library("libnccl_stand_in.so")].join(":");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([NAME, "--exact"]).env("LD_PRELOAD", preloaded).env("HOST_WAITS", &noted);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let noted = std::fs::read_to_string(noted).unwrap();
    assert!(noted.starts_with("cudaStreamSynchronize ThreadId(") && noted.lines().count() == 1, "{noted}");
}
