//! Turns panics of libraries, which damaged files can cause, into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    /// Whether this thread is in a call of [`catch_panic`].
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of a library's `call`, or `None` if the call panics. After a panic, the caller may only drop the
/// values that `call` borrowed.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    IS_CATCHING.set(true);
    let returned = catch_unwind(AssertUnwindSafe(call));
    IS_CATCHING.set(false);
    returned.ok()
}

/// Wraps the installed panic hook, so that the hook does not see panics that become a [`DataError`](crate::DataError).
/// The installed hook may print the panic or end the process.
pub fn hide_caught_panics() {
    let hook = take_hook();
    set_hook(Box::new(move |info| {
        if !IS_CATCHING.get() {
            hook(info);
        }
    }));
}
