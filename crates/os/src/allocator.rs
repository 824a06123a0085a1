//! Sets parameters of the C library's allocator, which libtorch uses.

/// Makes the allocator keep freed memory, because a step allocates the memory that the previous step freed. If the
/// allocator returned this memory, the kernel would have to clear it again, page by page: 22,700 pages per step for a
/// model with eight layers of width 256 and a vocabulary of 2,048.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: The call sets a parameter of the allocator before other threads start. If the call has no effect,
        // steps are only slower.
        unsafe { libc::mallopt(parameter, value) };
    }
}
