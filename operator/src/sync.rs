//! State that reconciles and background tasks share.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Locks a mutex, even if a panic has poisoned it. A panic must stay the error of one job, and the data behind the
/// mutex is valid even after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The in-memory state of each job, by UID.
#[derive(Debug)]
pub(crate) struct PerJob<T>(Mutex<HashMap<String, T>>);

impl<T> Default for PerJob<T> {
    fn default() -> PerJob<T> {
        PerJob(Mutex::default())
    }
}

impl<T> PerJob<T> {
    /// Locks the state of all jobs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<String, T>> {
        lock(&self.0)
    }

    /// Removes the state of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.lock().retain(|uid, _| is_live(uid));
    }
}

/// A handle that aborts its task when the handle is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
