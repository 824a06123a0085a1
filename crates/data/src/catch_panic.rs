//! The conversion of panics of libraries on damaged files into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    /// Whether this thread is in a call of [`catch_panic`].
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// The result of a library's `call`; `None` if it panics. After a panic, the values that `call` borrowed may only be
/// dropped.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    IS_CATCHING.set(true);
    let returned = catch_unwind(AssertUnwindSafe(call));
    IS_CATCHING.set(false);
    returned.ok()
}

/// Hides panics that become a [`DataError`](crate::DataError) from the currently installed hook, which may print them
/// or end the process.
pub fn hide_caught_panics() {
    let hook = take_hook();
    set_hook(Box::new(move |info| {
        if !IS_CATCHING.get() {
            hook(info);
        }
    }));
}
