//! State that reconciles and background tasks share.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Locks a mutex, even if a panic left it poisoned. A panic is the error of one job, and every update leaves valid
/// data.
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

/// The lists of the watches of one kind, by watched namespace; `""` stands for all namespaces. A watch begins with a list,
/// and lists again after a gap in which it may have missed events.
#[derive(Debug, Default)]
pub(crate) struct WatchLists {
    by_namespace: Mutex<HashMap<String, WatchList>>,
    list_ended: Notify,
}

#[derive(Debug, Default)]
struct WatchList {
    /// Whether the first list of the watch is complete.
    has_listed: bool,
    /// The keys of the objects in the list that is in progress; `None` between two lists.
    listing: Option<HashSet<String>>,
}

impl WatchLists {
    /// Records that a watch begins a list.
    pub(crate) fn begin(&self, watched: &str) {
        lock(&self.by_namespace).entry(watched.to_owned()).or_default().listing = Some(HashSet::new());
    }

    /// Records an object that the watch of a namespace delivers. The object counts if a list is in progress.
    pub(crate) fn add(&self, namespace: &str, key: String) {
        self.with_watch(namespace, |watch| watch.listing.as_mut().map(|listing| listing.insert(key)));
    }

    /// Records that the list of a watch is complete. Returns the keys of its objects: other objects do not exist.
    pub(crate) fn end(&self, watched: &str) -> HashSet<String> {
        let listed = {
            let mut watches = lock(&self.by_namespace);
            let watch = watches.entry(watched.to_owned()).or_default();
            watch.has_listed = true;
            watch.listing.take().unwrap_or_default()
        };
        self.list_ended.notify_waiters();
        listed
    }

    /// Whether the first list of a namespace is complete.
    pub(crate) fn has_listed(&self, namespace: &str) -> bool {
        self.with_watch(namespace, |watch| watch.has_listed) == Some(true)
    }

    /// Whether the first list of a namespace is complete, and no other list is in progress.
    pub(crate) fn is_complete(&self, namespace: &str) -> bool {
        self.with_watch(namespace, |watch| watch.has_listed && watch.listing.is_none()) == Some(true)
    }

    /// Waits until the first list of a namespace is complete.
    pub(crate) async fn wait_for_first_list(&self, namespace: &str) {
        loop {
            let ended = self.list_ended.notified();
            if self.has_listed(namespace) {
                return;
            }
            ended.await;
        }
    }

    /// Calls `with` on the watch that delivers the objects of a namespace. `None` if no such watch exists.
    fn with_watch<T>(&self, namespace: &str, with: impl FnOnce(&mut WatchList) -> T) -> Option<T> {
        let mut watches = lock(&self.by_namespace);
        let watched = if watches.contains_key("") { "" } else { namespace };
        watches.get_mut(watched).map(with)
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
