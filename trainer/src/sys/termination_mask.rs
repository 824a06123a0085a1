//! SIGTERM and SIGINT, held back or let through. The image's entry point, which links no library of ours, has this file too.

/// Holds SIGTERM and SIGINT back (`libc::SIG_BLOCK`) or lets them through (`libc::SIG_UNBLOCK`), for this thread and those that
/// it starts from now on. A signal that is held back waits, also while the process becomes another program. Else the first
/// process of a container, for which the kernel has no default effect, would lose it.
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
