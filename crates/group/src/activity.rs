//! The current activity of a stage: set by the trainer at each action, sent with its heartbeats, and visible as the
//! name of the thread (`top -H`). Where a device does the work, the trainer is ahead of it: what it sets is current only once the device
//! is there.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::lock;

/// A stage's current activity. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    current: Named,
    sequence: u64,
    since: Instant,
    /// What was set and is not current yet, in order.
    ahead: VecDeque<Ahead>,
}

#[derive(Debug)]
struct Named {
    text: String,
    waits_for: Option<usize>,
}

/// An activity that a device has not reached, as far as is known.
struct Ahead {
    named: Named,
    is_reached: Box<dyn Fn() -> bool + Send>,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named.fmt(f)
    }
}

impl ActivityState {
    fn advance(&mut self) {
        while let Some(next) = self.ahead.pop_front_if(|next| (next.is_reached)()) {
            self.begin(next.named);
        }
    }

    fn begin(&mut self, named: Named) {
        (self.current, self.sequence, self.since) = (named, self.sequence + 1, Instant::now());
    }
}

/// Sets the calling thread's name (Linux keeps 15 bytes).
pub fn name_thread(what: &str) {
    if let Ok(name) = std::ffi::CString::new(what) {
        let _ = rustix::thread::set_name(&name); // only displayed
    }
}

/// The payload of a member's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) text: String,
    /// A group rank.
    pub(crate) waits_for: Option<usize>,
    /// How often the activity was set; distinguishes a new `F 5` from an earlier one.
    pub(crate) sequence: u64,
    /// How long it has been the current one.
    pub(crate) age: Duration,
}

impl Activity {
    pub(crate) fn new(text: &str) -> Self {
        Activity(Arc::new(Mutex::new(ActivityState {
            current: Named { text: text.to_owned(), waits_for: None },
            sequence: 0,
            since: Instant::now(),
            ahead: VecDeque::new(),
        })))
    }

    /// Sets the activity to `text`, for example `F 5`; or to waiting for `text`, for example `RECV_B of microbatch 3`,
    /// from the member with the group rank `waits_for`. It is current at once, or when all that was set before is.
    pub fn set(&self, text: impl Into<String>, waits_for: Option<usize>) {
        self.set_when(text, waits_for, || true);
    }

    /// The same once `is_reached` says so, which is asked from time to time on any thread: whether the device is done with what came
    /// before.
    pub fn set_when(
        &self,
        text: impl Into<String>,
        waits_for: Option<usize>,
        is_reached: impl Fn() -> bool + Send + 'static,
    ) {
        let text = text.into();
        name_thread(&text);
        let mut state = lock(&self.0);
        state.ahead.push_back(Ahead { named: Named { text, waits_for }, is_reached: Box::new(is_reached) });
        state.advance();
    }

    /// The current activity, for the termination message.
    pub fn text(&self) -> String {
        self.current().current.text.clone()
    }

    /// What was set last, for the termination message of a failure of the trainer itself.
    pub fn last_set(&self) -> String {
        let state = lock(&self.0);
        state.ahead.back().map_or(&state.current, |last| &last.named).text.clone()
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let state = self.current();
        Heartbeat {
            text: state.current.text.clone(),
            waits_for: state.current.waits_for,
            sequence: state.sequence,
            age: state.since.elapsed(),
        }
    }

    fn current(&self) -> MutexGuard<'_, ActivityState> {
        let mut state = lock(&self.0);
        state.advance();
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_a_device_has_not_reached_is_not_current() {
        let activity = Activity::new("joining");
        let done = Arc::new(AtomicUsize::new(0));
        let set = |text: &str, waits_for, at: usize| {
            let done = Arc::clone(&done);
            activity.set_when(text, waits_for, move || done.load(Ordering::SeqCst) >= at);
        };
        activity.set("DATA", None);
        set("F 0", None, 0);
        set("RECV_B of microbatch 0", Some(1), 1);
        set("B 0", None, 2);
        activity.set("EXCHANGE", None); // the host's, which is ahead too
        let current = || {
            let Heartbeat { text, waits_for, sequence, .. } = activity.heartbeat();
            (text, waits_for, sequence)
        };
        assert_eq!((current(), activity.last_set().as_str()), (("F 0".into(), None, 2), "EXCHANGE"));
        done.store(1, Ordering::SeqCst);
        assert_eq!(current(), ("RECV_B of microbatch 0".into(), Some(1), 3));
        assert_eq!((activity.text().as_str(), activity.last_set().as_str()), ("RECV_B of microbatch 0", "EXCHANGE"));
        done.store(2, Ordering::SeqCst);
        assert_eq!((current(), activity.text().as_str()), (("EXCHANGE".into(), None, 5), "EXCHANGE"));
    }
}
