//! Threads and locks. A lock whose holder panicked stays usable, because every statement in this crate leaves the data
//! under a lock valid.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::GroupError;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread. `name` has at most 15 bytes.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GroupError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(GroupError::io(format!("the thread {name} can't be started")))
}
