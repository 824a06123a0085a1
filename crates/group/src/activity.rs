//! What a stage is doing now: set by the trainer at each action, carried by its heartbeats, and seen from outside as the
//! name of the thread that does it (`top -H`).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::lock;

/// A stage's current action. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<Current>>);

#[derive(Debug)]
struct Current {
    text: String,
    waits_for: Option<usize>,
    changes: u64,
    since: Instant,
}

/// Names the calling thread after what it does: the first 15 bytes are what Linux keeps.
pub fn name_thread(what: &str) {
    if let Ok(name) = std::ffi::CString::new(what) {
        let _ = rustix::thread::set_name(&name); // only ever shown
    }
}

/// What a heartbeat carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) text: String,
    pub(crate) waits_for: Option<usize>,
    /// How often the activity was set: what tells a new `F 5` from the old one.
    pub(crate) changes: u64,
    /// For how long it has been the current one.
    pub(crate) age: Duration,
}

impl Activity {
    pub(crate) fn new(text: &str) -> Self {
        Activity(Arc::new(Mutex::new(Current {
            text: text.to_owned(),
            waits_for: None,
            changes: 0,
            since: Instant::now(),
        })))
    }

    /// From now on the stage does `text`, for example `F 5`; or it waits for `text`, for example `RECV_B of
    /// microbatch 3`, from the stage `waits_for`.
    pub fn set(&self, text: impl Into<String>, waits_for: Option<usize>) {
        let text = text.into();
        name_thread(&text);
        let mut current = lock(&self.0);
        *current = Current { text, waits_for, changes: current.changes + 1, since: Instant::now() };
    }

    /// What the stage does now, for its last words.
    pub fn text(&self) -> String {
        lock(&self.0).text.clone()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let current = lock(&self.0);
        Snapshot {
            text: current.text.clone(),
            waits_for: current.waits_for,
            changes: current.changes,
            age: current.since.elapsed(),
        }
    }
}
