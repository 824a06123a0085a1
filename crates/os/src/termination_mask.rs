//! Masks SIGTERM and SIGINT. The image's entry point, which links no library of this project, also includes this file.

/// Blocks SIGTERM and SIGINT (`libc::SIG_BLOCK`) or unblocks them (`libc::SIG_UNBLOCK`) for this thread, and for
/// threads that it starts afterwards. A blocked signal stays pending, even if `exec` replaces the program. Without the
/// mask, the first process of a container would lose a signal that arrives before its handler is installed, because the
/// kernel applies no default action to that process.
pub(crate) fn mask_termination(how: libc::c_int) {
    // SAFETY: `sigemptyset` initialises the set, and the calls keep no pointer. The calls fail only for unknown
    // signals.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
    }
}
