//! The process's allocator, which counts the bytes that each thread has allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The bytes that this thread has allocated and not freed, and the maximum of that number.
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: i64) {
    // a thread that ends frees memory after the end of its thread-local variables
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // the old and the new memory both exist during the copy
        count(size as i64);
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Returns the result of `run`, and the largest number of bytes that this thread held during `run` in addition to the
/// bytes that it held before.
pub fn peak_bytes<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    let value = run();
    let (_, most) = HELD.get();
    (value, (most - before).max(0) as u64)
}
