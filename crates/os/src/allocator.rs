//! Settings of the C library's allocator, which libtorch uses, for freed memory.

/// Keeps freed memory instead of returning it to the system. A step allocates the memory that the step before it freed.
/// Returned memory would have to be requested and cleared again page by page: 22,700 pages per step with eight layers
/// of 256 and a vocabulary of 2,048.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: sets a number of the allocator, before other threads start. If the call has no effect, steps are only
        // slower.
        unsafe { libc::mallopt(parameter, value) };
    }
}
