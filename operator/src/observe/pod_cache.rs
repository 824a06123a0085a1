//! A cache of pods, which the watch updates. With the cache, a reconcile that changes nothing needs no API request. The
//! cache may be stale, so the operator lists the pods before it writes anything. Only two facts from the cache need no
//! list: all pods were created, and a job without `status.record` has no pods.
//!
//! A watch begins with a list, and lists again after a gap in which it may have missed events (`Event::Init` to
//! `Event::InitDone`). Until the list is complete, the cache keeps the pods from before the list. When the list is
//! complete, the cache removes the pods that are absent from the list, and the operator reconciles the jobs of these
//! pods. The operator therefore need not list the pods of each job after a gap.
//!
//! kube's `reflector::Store` is not used for pods: the store drops a deleted pod with its exit, does not show whether a
//! pod is older than a list, has no index by job, and holds whole objects. The `controller` uses the store for
//! PipelineJobs.
//!
//! The cache keeps the exit of a deleted pod while the pod's attempt is current. The kubelet writes the exit before the
//! pod object is deleted, and a list has only existing pods. Exits that happen while the operator is down are lost, and
//! their reason is `Unknown`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::ObservedPod;
use crate::build::JobReference;
use crate::sync::{PerJob, Watches};

/// The time for which a pod that is absent from a list keeps its last state, until the watch delivers the pod's exit.
const MISSING_POD_GRACE: Duration = Duration::from_secs(1);

/// The pods, by the UID of their job.
#[derive(Debug, Default)]
pub(crate) struct PodCache {
    jobs: PerJob<JobPods>,
    watches: Watches<PodWatch>,
}

#[derive(Debug)]
struct JobPods {
    job: JobReference,
    all: Vec<ObservedPod>,
    /// The newest resourceVersion that the watch delivered.
    newest_version: u64,
}

impl JobPods {
    fn none(job: &JobReference) -> JobPods {
        JobPods { job: job.clone(), all: Vec::new(), newest_version: 0 }
    }
}

/// A watch of pods.
#[derive(Debug, Default)]
struct PodWatch {
    /// Whether the first list of the watch is complete.
    has_listed: bool,
    /// The UIDs of the pods in the list that is in progress; `None` between two lists.
    listing: Option<HashSet<String>>,
}

impl PodCache {
    /// Applies a pod event of the watch. Returns whether the event changes the cached pod.
    pub(crate) fn apply_event(&self, job: &JobReference, mut pod: ObservedPod, deleted: bool) -> bool {
        self.watches.with_watch_of(&job.namespace, |watch| {
            if let Some(listing) = &mut watch.listing {
                listing.insert(pod.uid.clone());
            }
        });
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.uid.clone()).or_insert_with(|| JobPods::none(job));
        pods.newest_version = pods.newest_version.max(pod.version);
        let pods = &mut pods.all;
        pod.deleted = deleted;
        let before = pods.iter().find(|known| known.uid == pod.uid);
        if before.is_some_and(|before| before.version > pod.version) {
            return false;
        }
        pod.keep_pending_since(before);
        let changed = before.is_none_or(|before| !before.decides_like(&pod));
        pods.retain(|other| other.uid != pod.uid);
        if !deleted || pod.has_exited() {
            pods.push(pod);
        }
        changed
    }

    /// Removes a pod that the job does not control. Returns whether the pod was cached.
    pub(crate) fn remove_foreign(&self, job: &str, uid: &str) -> bool {
        let mut jobs = self.jobs.lock();
        let Some(pods) = jobs.get_mut(job) else { return false };
        let before = pods.all.len();
        pods.all.retain(|known| known.uid != uid || known.deleted);
        pods.all.len() < before
    }

    /// Returns a job's pods, including deleted pods of `attempt`, and drops the exits of earlier attempts. Returns
    /// `None` while a pod is absent from a list and the watch may still deliver its exit.
    pub(super) fn get(&self, job: &str, attempt: u64) -> Option<Vec<ObservedPod>> {
        let mut jobs = self.jobs.lock();
        let Some(JobPods { all: pods, .. }) = jobs.get_mut(job) else { return Some(Vec::new()) };
        // use the attempt in `status.record`: the label of a pod may have any number
        pods.retain(|pod| !pod.deleted || pod.attempt >= attempt);
        if pods.iter().any(|pod| pod.missing_since.is_some()) {
            return None;
        }
        Some(pods.iter().filter(|pod| !pod.deleted || pod.attempt == attempt).cloned().collect())
    }

    /// Whether the cache proves that a job without `status.record` has no pods. In that case, the watch delivers all
    /// pods that are created for the job later.
    pub(super) fn has_none(&self, job: &JobReference) -> bool {
        let is_complete =
            self.watches.with_watch_of(&job.namespace, |watch| watch.has_listed && watch.listing.is_none());
        is_complete == Some(true) && self.jobs.lock().get(&job.uid).is_none_or(|pods| pods.all.is_empty())
    }

    /// Whether a pod of the job with this UID may run.
    pub(crate) fn has_living(&self, job: &str) -> bool {
        let jobs = self.jobs.lock();
        jobs.get(job).is_some_and(|pods| pods.all.iter().any(|pod| !pod.deleted && !pod.has_exited()))
    }

    /// Replaces a job's pods with the pods of a list at `version`. Adds deleted pods of `attempt` whose exit is known,
    /// and recently deleted pods whose exit the watch has not delivered yet. Returns all these pods.
    pub(super) fn replace_with_list(
        &self,
        job: &JobReference,
        attempt: u64,
        version: u64,
        mut listed: Vec<ObservedPod>,
    ) -> Vec<ObservedPod> {
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.uid.clone()).or_insert_with(|| JobPods::none(job));
        for pod in &mut listed {
            pod.keep_pending_since(pods.all.iter().find(|known| known.uid == pod.uid));
        }
        let now = Instant::now();
        let absent_from_list: Vec<ObservedPod> = pods
            .all
            .iter()
            .filter(|pod| pod.attempt == attempt && listed.iter().all(|there| there.uid != pod.uid))
            .map(|pod| match pod.has_exited() {
                true => ObservedPod { deleted: true, ..pod.clone() },
                false => ObservedPod { missing_since: pod.missing_since.or(Some(now)), ..pod.clone() },
            })
            .filter(|pod| pod.missing_since.is_none_or(|since| since.elapsed() < MISSING_POD_GRACE))
            .collect();
        listed.extend(absent_from_list);
        // keep the cached pods if the watch is newer than the list
        if version >= pods.newest_version {
            pods.all.clone_from(&listed);
        }
        listed
    }

    /// Records that the watch of a namespace begins a list: its first list, or a list after a gap in which it may have
    /// missed events. `""` stands for all namespaces.
    pub(crate) fn begin_list(&self, watched: &str) {
        self.watches.with(watched, |watch| watch.listing = Some(HashSet::new()));
    }

    /// Records that the list of a watch is complete, so that pods absent from the list do not exist. Returns the jobs
    /// that had such pods.
    pub(crate) fn end_list(&self, watched: &str) -> Vec<JobReference> {
        let listed = self.watches.with(watched, |watch| {
            watch.has_listed = true;
            watch.listing.take().unwrap_or_default()
        });
        self.watches.list_has_ended();
        let is_gone = |pod: &ObservedPod| !pod.deleted && !listed.contains(&pod.uid);
        let mut jobs = self.jobs.lock();
        let is_watched = |pods: &&mut JobPods| watched.is_empty() || pods.job.namespace == watched;
        let changed = jobs.values_mut().filter(is_watched).filter(|pods| pods.all.iter().any(is_gone));
        let changed = changed.map(|pods| {
            pods.all.retain(|pod| pod.has_exited() || !is_gone(pod));
            pods.all.iter_mut().for_each(|pod| pod.deleted |= is_gone(pod));
            pods.job.clone()
        });
        changed.collect()
    }

    /// Waits until the watch of this namespace has listed its pods for the first time.
    pub(crate) async fn wait_for_first_list(&self, namespace: &str) {
        let has_listed = || self.watches.with_watch_of(namespace, |watch| watch.has_listed).filter(|listed| *listed);
        self.watches.after_list(has_listed).await;
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

#[cfg(test)]
mod tests;
