//! What this operator wrote last of each job. The watch brings it back a moment later: until then the next look would
//! decide from an older state, and be refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::api::DynamicObject;

use crate::observe::version;

/// The jobs as they were written, by UID.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashMap<String, Arc<DynamicObject>>>);

impl Written {
    /// Notes what a write gave.
    pub(crate) fn note(&self, mut job: DynamicObject) {
        job.metadata.managed_fields = None;
        self.lock().insert(job.uid().unwrap_or_default(), Arc::new(job));
    }

    /// The newer of what the watch knows and what was written.
    pub(crate) fn newest(&self, watched: Arc<DynamicObject>) -> Arc<DynamicObject> {
        let written = self.lock().get(&watched.uid().unwrap_or_default()).cloned();
        written.filter(|written| number(written) > number(&watched)).unwrap_or(watched)
    }

    /// Whether what the watch brings is what was written, or even older; what is newer is somebody else's.
    pub(crate) fn is_own(&self, watched: &DynamicObject) -> bool {
        let uid = watched.uid().unwrap_or_default();
        let mut all = self.lock();
        let Some(written) = all.get(&uid).map(|written| number(written)) else { return false };
        if number(watched) > written {
            all.remove(&uid);
            return false;
        }
        true
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.lock().retain(|uid, _| living(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<DynamicObject>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(job: &DynamicObject) -> u64 {
    version(job.metadata.resource_version.as_deref().unwrap_or_default())
}
