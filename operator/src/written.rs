//! What this operator wrote last of each job. The watch brings it back a moment later: until then the next look would
//! decide from an older state, and be refused.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;

use crate::job::JobObject;
use crate::observe::version;

/// The jobs as they were written, by UID.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashMap<String, Write>>);

#[derive(Debug)]
struct Write {
    version: u64,
    at: Instant,
    /// The job, until the watch has brought it back.
    job: Option<Arc<JobObject>>,
}

impl Written {
    /// Notes what a write gave.
    pub(crate) fn note(&self, mut job: JobObject) {
        job.metadata.managed_fields = None;
        let (uid, version) = (job.uid().unwrap_or_default(), number(&job));
        self.lock().insert(uid, Write { version, at: Instant::now(), job: Some(Arc::new(job)) });
    }

    /// The newer of what the watch knows and what was written.
    pub(crate) fn newest(&self, watched: Arc<JobObject>) -> Arc<JobObject> {
        let written = self.lock().get(&watched.uid().unwrap_or_default()).and_then(|write| write.job.clone());
        written.filter(|written| number(written) > number(&watched)).unwrap_or(watched)
    }

    /// How long ago this job was written.
    pub(crate) fn age(&self, uid: &str) -> Option<Duration> {
        self.lock().get(uid).map(|write| write.at.elapsed())
    }

    /// Whether what the watch brings is what was written, or even older; what is newer is somebody else's.
    pub(crate) fn is_own(&self, watched: &JobObject) -> bool {
        let uid = watched.uid().unwrap_or_default();
        let mut all = self.lock();
        let Some(write) = all.get_mut(&uid) else { return false };
        match number(watched).cmp(&write.version) {
            Ordering::Less => true,
            Ordering::Equal => {
                write.job = None;
                true
            }
            Ordering::Greater => {
                write.job = None;
                false
            }
        }
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.lock().retain(|uid, _| living(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(job: &JobObject) -> u64 {
    version(job.metadata.resource_version.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(version: &str) -> JobObject {
        let metadata = serde_json::json!({"name": "a", "uid": "u", "resourceVersion": version});
        serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": {}})).unwrap()
    }

    #[test]
    fn what_was_written_counts_until_the_watch_has_brought_it_back() {
        let written = Written::default();
        let newest = |watched: &str| number(&written.newest(Arc::new(job(watched))));
        assert!(!written.is_own(&job("1")), "nothing was written yet");
        written.note(job("5"));
        assert_eq!((newest("3"), newest("9")), (5, 9));
        assert!(written.is_own(&job("3")), "older: what was written came after it");
        assert!(written.is_own(&job("5")));
        assert!(written.lock().get("u").unwrap().job.is_none(), "the watch's own copy is enough");
        assert!(written.is_own(&job("5")), "brought twice");
        assert!(!written.is_own(&job("6")), "somebody else's");
        assert!(!written.is_own(&job("7")));
    }
}
