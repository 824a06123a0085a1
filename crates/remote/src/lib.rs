//! Code that all clients of remote files share: patterns of paths, waits, and retries.
#![forbid(unsafe_code)]

mod pattern;
mod retry;

pub use pattern::{MATCH_OPTIONS, PathPattern};
pub use retry::{Notice, Pause, Retry, RetryPolicy, Waiter, jitter};
