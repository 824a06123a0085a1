//! Stores the URLs that the hub has signed. The CDN serves the file of a signed URL for a limited time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::url::Url;

/// The signed URLs of files, by the path of the file on the hub.
#[derive(Debug, Default)]
pub(crate) struct SignedUrls(Mutex<HashMap<String, Url>>);

impl SignedUrls {
    /// The largest number of stored URLs. The number is larger than the number of files that readers have open at a
    /// time. The hub signs a dropped URL again.
    const MAX_URLS: usize = 256;

    pub(crate) fn get(&self, path: &str) -> Option<Url> {
        self.lock().get(path).cloned()
    }

    pub(crate) fn remember(&self, path: String, url: &Url) {
        let mut urls = self.lock();
        if urls.len() >= SignedUrls::MAX_URLS {
            urls.clear();
        }
        urls.insert(path, url.clone());
    }

    pub(crate) fn forget(&self, path: &str) {
        self.lock().remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Url>> {
        // a panic of another thread leaves no partial change in a map
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
