//! Reports the waits of the clients of remote sources to the user.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::surroundings::OnWait;

/// The time between two reports of one wait.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The functions that a client calls when it waits.
pub(super) struct Waits {
    /// Waits for the given time.
    pub(super) pause: Arc<dyn Fn(Duration) + Send + Sync>,
    /// Receives the reason for the next wait.
    pub(super) notice: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Waits {
    /// Returns waits that are reported to `on_wait`. A long wait is reported repeatedly, so that it does not look like
    /// a hang.
    pub(super) fn reported_to(on_wait: &OnWait) -> Waits {
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
        Waits { pause, notice }
    }
}
