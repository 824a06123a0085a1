//! How the C library's allocator, which libtorch uses, treats freed memory.

/// Keeps freed memory instead of giving it back to the system. A step allocates what the step before it freed: given back,
/// every page of it is asked for and cleared again, with eight layers of 256 and a vocabulary of 2,048 22,700 pages a step.
pub(crate) fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: sets a number of the allocator; it is called before other threads are started. Without effect, a step is
        // slower, no more.
        unsafe { libc::mallopt(parameter, value) };
    }
}
