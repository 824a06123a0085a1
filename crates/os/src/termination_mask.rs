//! The mask of SIGTERM and SIGINT. The image's entry point, which links no library of this project, includes this file
//! too.

/// Blocks SIGTERM and SIGINT (`libc::SIG_BLOCK`) or unblocks them (`libc::SIG_UNBLOCK`), for this thread and threads
/// that it starts from now on. A blocked signal stays pending, even while the process becomes another program. The
/// first process of a container would otherwise lose the signal, because the kernel applies no default action to it.
pub(crate) fn mask_termination(how: libc::c_int) {
    // SAFETY: `sigemptyset` initialises the set, and the calls keep no pointer. They fail for unknown numbers only.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
    }
}
