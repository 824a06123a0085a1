//! The current activity of a stage: set by the trainer at each action, sent with its heartbeats, and visible as the
//! name of the thread (`top -H`).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::lock;

/// A stage's current activity. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    text: String,
    waits_for: Option<usize>,
    sequence: u64,
    since: Instant,
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
            text: text.to_owned(),
            waits_for: None,
            sequence: 0,
            since: Instant::now(),
        })))
    }

    /// Sets the activity to `text`, for example `F 5`; or to waiting for `text`, for example `RECV_B of microbatch 3`,
    /// from the member with the group rank `waits_for`.
    pub fn set(&self, text: impl Into<String>, waits_for: Option<usize>) {
        let text = text.into();
        name_thread(&text);
        let mut current = lock(&self.0);
        *current = ActivityState { text, waits_for, sequence: current.sequence + 1, since: Instant::now() };
    }

    /// The current activity, for the termination message.
    pub fn text(&self) -> String {
        lock(&self.0).text.clone()
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let current = lock(&self.0);
        Heartbeat {
            text: current.text.clone(),
            waits_for: current.waits_for,
            sequence: current.sequence,
            age: current.since.elapsed(),
        }
    }
}
