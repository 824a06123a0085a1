//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Waits until `condition` gives a value.
///
/// # Panics
/// After `seconds`, naming `what`.
#[track_caller]
pub fn until<T>(what: &str, seconds: u64, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {seconds} s for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
