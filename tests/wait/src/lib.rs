//! Waits for conditions, and never for a fixed time.

use std::time::{Duration, Instant};

/// The factor by which a busy machine may be slower than the one for which a test states its seconds.
pub const LOAD_FACTOR: u64 = 4;

/// Waits until `condition` returns a value.
///
/// # Panics
/// If there is no value after [`LOAD_FACTOR`] times `seconds`. The message names `what`.
#[track_caller]
pub fn until<T>(what: &str, seconds: u64, condition: impl FnMut() -> Option<T>) -> T {
    until_or_tell(what, seconds, condition, String::new)
}

/// As [`until`]. The message of the panic ends with `details`.
#[track_caller]
pub fn until_or_tell<T>(
    what: &str,
    seconds: u64,
    mut condition: impl FnMut() -> Option<T>,
    details: impl FnOnce() -> String,
) -> T {
    match attempt(what, Duration::from_secs(LOAD_FACTOR * seconds), || Ok(condition())) {
        Ok(value) => value,
        Err(error) => panic!("{error}{}", details()),
    }
}

/// Waits until `condition` returns a value.
///
/// # Errors
/// If there is no value after `limit`; the message names `what`. An error of the condition is returned at once.
pub fn attempt<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        anyhow::ensure!(Instant::now() < deadline, "waited {} s for {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
