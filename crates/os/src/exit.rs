//! The end of a process that has libtorch.

/// Ends the process with this exit code, without the destructors of static objects. The destructors of libtorch take
/// 70 ms, which is longer than many commands, and are unsafe while other threads are inside libtorch. The caller
/// flushes its output first.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: The call ends the process at once, so no code can observe an invalid state.
    unsafe { libc::_exit(code) }
}
