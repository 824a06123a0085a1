//! A read-your-writes cache: each job in the version that this operator wrote last. The watch delivers a write a moment
//! later. Without the cache, a reconcile before the delivery would decide from the older version, and its write would
//! conflict.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use crate::job::RawPipelineJob;
use crate::observe::parse_resource_version;
use crate::sync::PerJob;

/// The written jobs, by UID.
#[derive(Debug, Default)]
pub(crate) struct WriteCache(PerJob<WrittenJob>);

#[derive(Debug)]
struct WrittenJob {
    version: u64,
    at: Instant,
    /// The job; `None` after the watch has delivered this version or a newer one.
    job: Option<Arc<RawPipelineJob>>,
}

impl WriteCache {
    /// Adds the result of a write.
    pub(crate) fn insert(&self, mut job: RawPipelineJob) {
        job.metadata.managed_fields = None;
        let (uid, version) = (job.uid().unwrap_or_default(), resource_version(&job));
        self.0.lock().insert(uid, WrittenJob { version, at: Instant::now(), job: Some(Arc::new(job)) });
    }

    /// Returns the newer of the watched and the written version.
    pub(crate) fn newest(&self, watched: Arc<RawPipelineJob>) -> Arc<RawPipelineJob> {
        let written = self.0.lock().get(&watched.uid().unwrap_or_default()).and_then(|written| written.job.clone());
        written.filter(|written| resource_version(written) > resource_version(&watched)).unwrap_or(watched)
    }

    /// Returns the time since this operator wrote the job; `None` if this operator has not written the job.
    pub(crate) fn age(&self, uid: &str) -> Option<Duration> {
        self.0.lock().get(uid).map(|written| written.at.elapsed())
    }

    /// Whether the watched version is this operator's write or an older version. A newer version comes from another
    /// client.
    pub(crate) fn is_own_write(&self, watched: &RawPipelineJob) -> bool {
        let uid = watched.uid().unwrap_or_default();
        let mut jobs = self.0.lock();
        let Some(written) = jobs.get_mut(&uid) else { return false };
        match resource_version(watched).cmp(&written.version) {
            Ordering::Less => true,
            Ordering::Equal => {
                written.job = None;
                true
            }
            Ordering::Greater => {
                written.job = None;
                false
            }
        }
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.0.retain(is_live);
    }
}

fn resource_version(job: &RawPipelineJob) -> u64 {
    parse_resource_version(job.metadata.resource_version.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(version: &str) -> RawPipelineJob {
        let metadata = serde_json::json!({"name": "a", "uid": "u", "resourceVersion": version});
        serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": {}})).unwrap()
    }

    #[test]
    fn a_write_is_kept_until_the_watch_delivers_it() {
        let cache = WriteCache::default();
        let newest = |watched: &str| resource_version(&cache.newest(Arc::new(job(watched))));
        assert!(!cache.is_own_write(&job("1")), "no write yet");
        cache.insert(job("5"));
        assert_eq!((newest("3"), newest("9")), (5, 9));
        assert!(cache.is_own_write(&job("3")), "older than our write");
        assert!(cache.is_own_write(&job("5")));
        assert!(cache.0.lock().get("u").unwrap().job.is_none(), "the watch's copy suffices");
        assert!(cache.is_own_write(&job("5")), "delivered twice");
        assert!(!cache.is_own_write(&job("6")), "another client's");
        assert!(!cache.is_own_write(&job("7")));
    }
}
