//! State that reconciles and background tasks share.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
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

/// The state of each watch, by watched namespace; `""` stands for all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Watches<T> {
    watches: Mutex<HashMap<String, T>>,
    list_ended: Notify,
}

impl<T: Default> Watches<T> {
    /// Calls `with` on the watch of the namespace `watched`.
    pub(crate) fn with<R>(&self, watched: &str, with: impl FnOnce(&mut T) -> R) -> R {
        with(lock(&self.watches).entry(watched.to_owned()).or_default())
    }

    /// Calls `with` on the watch that delivers the objects of a namespace. Returns `None` if no such watch exists.
    pub(crate) fn with_watch_of<R>(&self, namespace: &str, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut watches = lock(&self.watches);
        let watched = if watches.contains_key("") { "" } else { namespace };
        watches.get_mut(watched).map(with)
    }

    /// Wakes the calls of [`Watches::after_list`].
    pub(crate) fn list_has_ended(&self) {
        self.list_ended.notify_waiters();
    }

    /// Returns the result of `read`. Waits for the ends of lists while the result is `None`.
    pub(crate) async fn after_list<R>(&self, read: impl Fn() -> Option<R>) -> R {
        loop {
            let ended = self.list_ended.notified();
            if let Some(result) = read() {
                return result;
            }
            ended.await;
        }
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
