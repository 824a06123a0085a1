//! Lets tests wait for a condition, such as the end of a process, instead of a fixed time, and start processes that do
//! not outlive the test.

mod process;

use std::cell::Cell;
use std::time::{Duration, Instant};

pub use process::{is_gone, process_state, spawn};

/// The environment variable whose value, in seconds, replaces the time limit of a condition.
pub const VARIABLE: &str = "STAGECOACH_TEST_DEADLINE";

/// The default time limit of a condition, in seconds, on a machine with at most one busy process per core.
const SECONDS: u64 = 240;
/// The smallest and the largest factor by which the load of the machine extends a time limit.
const FACTORS: (f64, f64) = (1.0, 5.0);

/// The pause between two checks of a condition, as a multiple of the duration of a check. A condition may be a request
/// to a server, and tests that wait in parallel must not keep the cores busy with requests.
const IDLE: u32 = 4;
/// The shortest and the longest pause between two checks of a condition.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// The time until which a test waits for a condition. A high load postpones it.
#[derive(Debug)]
pub struct Deadline {
    began: Instant,
    seconds: u64,
    /// The longest limit so far. If the load falls, the limit does not become shorter.
    latest: Cell<Duration>,
}

impl Deadline {
    /// Starts to wait for a condition, with the default limit.
    pub fn start() -> Deadline {
        Deadline::after(SECONDS)
    }

    /// Starts to wait for work that takes up to `seconds` on a machine without other load.
    pub fn after(seconds: u64) -> Deadline {
        Deadline { began: Instant::now(), seconds, latest: Cell::default() }
    }

    /// Returns the time from the start of the wait to the deadline, for the highest load so far.
    pub fn limit(&self) -> Duration {
        let limit = limit(self.seconds, load(), std::env::var(VARIABLE).ok().as_deref());
        self.latest.set(self.latest.get().max(limit));
        self.latest.get()
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.began.elapsed() >= self.limit()
    }
}

/// Returns the number of processes that run or wait for a core, divided by the number of cores, as an average over a
/// minute.
fn load() -> f64 {
    let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processes = average.split(' ').next().and_then(|first| first.parse::<f64>().ok()).unwrap_or(1.0);
    processes / std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

fn limit(seconds: u64, load: f64, replacement: Option<&str>) -> Duration {
    match replacement.map(|text| text.parse().unwrap_or_else(|_| panic!("{VARIABLE} is {text:?}, not a whole number")))
    {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_secs_f64(seconds as f64 * load.clamp(FACTORS.0, FACTORS.1)),
    }
}

/// Waits until `condition` returns a value.
///
/// # Panics
/// If `condition` returns no value before the [`Deadline`]. The message names `what`.
#[track_caller]
pub fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_or_tell(what, condition, String::new)
}

/// Like [`until`]. The message of the panic ends with `details`.
#[track_caller]
pub fn until_or_tell<T>(what: &str, condition: impl FnMut() -> Option<T>, details: impl FnOnce() -> String) -> T {
    until_deadline(what, &Deadline::start(), condition, details)
}

/// Like [`until`], for work that takes up to `seconds` on a machine without other load.
#[track_caller]
pub fn until_within<T>(what: &str, seconds: u64, condition: impl FnMut() -> Option<T>) -> T {
    until_deadline(what, &Deadline::after(seconds), condition, String::new)
}

/// Like [`until_or_tell`], with the deadline `deadline`.
#[track_caller]
pub fn until_deadline<T>(
    what: &str,
    deadline: &Deadline,
    mut condition: impl FnMut() -> Option<T>,
    details: impl FnOnce() -> String,
) -> T {
    match poll(what, deadline.began, || deadline.is_over(), || Ok(condition())) {
        Ok(value) => value,
        Err(error) => panic!("{error}{}", details()),
    }
}

/// Waits until `condition` returns a value.
///
/// # Errors
/// If `condition` returns no value within `limit`, in which case the message names `what`. An error of the condition
/// ends the wait at once.
pub fn attempt<T>(
    what: &str,
    limit: Duration,
    condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    poll(what, began, || began.elapsed() >= limit, condition)
}

fn poll<T>(
    what: &str,
    began: Instant,
    is_over: impl Fn() -> bool,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    loop {
        let check = Instant::now();
        if let Some(value) = condition()? {
            return Ok(value);
        }
        anyhow::ensure!(!is_over(), "waited {} s for {what}", began.elapsed().as_secs());
        std::thread::sleep((check.elapsed() * IDLE).clamp(PAUSES.0, PAUSES.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_scales_the_deadline_within_bounds() {
        let seconds = |load| limit(100, load, None).as_secs();
        assert_eq!([0.0, 0.3, 1.0, 2.5, 5.0, 80.0].map(seconds), [100, 100, 100, 250, 500, 500]);
        assert_eq!(limit(100, 3.0, Some("7")), Duration::from_secs(7));
    }

    #[test]
    fn less_load_does_not_move_a_deadline_back() {
        let deadline = Deadline::start();
        deadline.latest.set(Duration::from_secs(9999));
        assert_eq!(deadline.limit(), Duration::from_secs(9999));
    }

    #[test]
    fn a_condition_that_never_holds_is_named() {
        let printed = poll("a miracle", Instant::now(), || true, || Ok(None::<()>)).unwrap_err().to_string();
        assert_eq!(printed, "waited 0 s for a miracle");
        assert_eq!(poll("a value", Instant::now(), || true, || Ok(Some(7))).unwrap(), 7);
    }
}
