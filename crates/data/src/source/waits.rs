//! Reports the waits of the clients of remote sources to the user.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_remote::Waiter;

use crate::surroundings::OnWait;

/// The time between two reports of the same wait.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Returns a waiter that reports its waits to `on_wait`. A long wait is reported repeatedly, so that it does not look
/// like a hang.
pub(super) fn reporting_waiter(on_wait: &OnWait) -> Waiter {
    let reported = Arc::new(Mutex::new(String::new()));
    let (receive, last) = (on_wait.receiver(), Arc::clone(&reported));
    let notice = Arc::new(move |sentence: &str| {
        receive(sentence);
        sentence.clone_into(&mut last.lock().unwrap_or_else(PoisonError::into_inner));
    });
    let receive = on_wait.receiver();
    let pause = Arc::new(move |wait: Duration| {
        let end = Instant::now() + wait;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(REPORT_INTERVAL));
            receive(&reported.lock().unwrap_or_else(PoisonError::into_inner));
        }
    });
    Waiter { pause, notice }
}
