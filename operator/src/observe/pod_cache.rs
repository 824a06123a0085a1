//! Cache of pods, fed by the watch. With the cache, a reconcile without effect needs no API request. The cache may be
//! stale, so the operator lists the pods before it records or does anything. Two facts are safe to take from the cache:
//! all pods were created, and a job without a record has no pods.
//!
//! A watch begins with a list, and lists again after a gap in which it may have missed events (`Event::Init` to
//! `Event::InitDone`). Pods absent from that list no longer exist. Until the list is complete, the pods known before
//! still count. Afterwards the operator reconciles the jobs whose pods have changed. The operator finds these jobs
//! without a list for each job, however many jobs exist.
//!
//! kube's `reflector::Store` is not used for pods: the store drops a deleted pod with its exit, does not show whether a
//! pod is older than a list, has no index by job, and holds whole objects. The `controller` uses the store for
//! PipelineJobs.
//!
//! The cache keeps the exit of a deleted pod while the pod's attempt is current. The kubelet writes the exit before the
//! pod object is deleted, and a list has only existing pods. Exits that happen while the operator is down are lost, and
//! their reason is `Unknown`.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ObservedPod;
use crate::build::JobReference;
use crate::sync::{PerJob, lock};

/// The time for which a pod that is absent from a list keeps its last state, until the watch delivers the pod's exit.
const MISSING_POD_GRACE: Duration = Duration::from_secs(1);

/// The pods, by their job's UID.
#[derive(Debug, Default)]
pub(crate) struct PodCache {
    jobs: PerJob<JobPods>,
    /// The watches, by watched namespace; `""` stands for all namespaces.
    watches: Mutex<HashMap<String, PodWatch>>,
    list_ended: Notify,
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
        self.with_watch(&job.namespace, |watch| {
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
        // exits of attempts before the previous one are no longer needed
        pods.retain(|other| other.uid != pod.uid && (!other.deleted || other.attempt.saturating_add(1) >= pod.attempt));
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

    /// A job's pods, including deleted pods of `attempt`. `None` while a pod is absent from a list and the watch may
    /// still deliver its exit.
    pub(super) fn get(&self, job: &str, attempt: u64) -> Option<Vec<ObservedPod>> {
        let jobs = self.jobs.lock();
        let pods = jobs.get(job).map_or(&[][..], |pods| &pods.all);
        if pods.iter().any(|pod| pod.missing_since.is_some()) {
            return None;
        }
        Some(pods.iter().filter(|pod| !pod.deleted || pod.attempt == attempt).cloned().collect())
    }

    /// Whether a job without a record has no pods. In that case, the watch delivers all pods that are created for the
    /// job later.
    pub(super) fn has_none(&self, job: &JobReference) -> bool {
        let is_complete = self.with_watch(&job.namespace, |watch| watch.has_listed && watch.listing.is_none());
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
        // otherwise the watch is already newer than the list
        if version >= pods.newest_version {
            pods.all.clone_from(&listed);
        }
        listed
    }

    /// Records that the watch of a namespace begins a list: its first list, or a list after a gap in which it may have
    /// missed events. `""` stands for all namespaces.
    pub(crate) fn begin_list(&self, watched: &str) {
        lock(&self.watches).entry(watched.to_owned()).or_default().listing = Some(HashSet::new());
    }

    /// Records that the list of a watch is complete, so that pods absent from the list no longer exist. Returns the
    /// jobs that had such pods.
    pub(crate) fn end_list(&self, watched: &str) -> Vec<JobReference> {
        let listed = {
            let mut watches = lock(&self.watches);
            let watch = watches.entry(watched.to_owned()).or_default();
            watch.has_listed = true;
            watch.listing.take().unwrap_or_default()
        };
        self.list_ended.notify_waiters();
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
        loop {
            let ended = self.list_ended.notified();
            if self.with_watch(namespace, |watch| watch.has_listed) == Some(true) {
                return;
            }
            ended.await;
        }
    }

    /// Calls `with` on the watch that delivers the pods of a namespace. `None` if no such watch exists.
    fn with_watch<T>(&self, namespace: &str, with: impl FnOnce(&mut PodWatch) -> T) -> Option<T> {
        let mut watches = lock(&self.watches);
        let watched = if watches.contains_key("") { "" } else { namespace };
        watches.get_mut(watched).map(with)
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::now;
    use super::*;
    use stagecoach_lifecycle::InstanceState;

    fn pod(uid: &str, attempt: u64, version: u64, exit: Option<i32>) -> ObservedPod {
        let labels = json!({"stagecoach.dev/stage": "0", "stagecoach.dev/attempt": attempt.to_string()});
        let terminated = exit.map_or(Value::Null, |code| json!({"exitCode": code}));
        let status = json!({"containerStatuses": [{"name": "trainer", "state": {"terminated": terminated}}]});
        let owner = json!({"apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "name": "a", "uid": "job", "controller": true});
        let metadata =
            json!({"uid": uid, "labels": labels, "resourceVersion": version.to_string(), "ownerReferences": [owner]});
        let object = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
        ObservedPod::from_partial(&object, "job").unwrap()
    }

    fn job() -> JobReference {
        JobReference { name: "a".into(), namespace: "ml".into(), uid: "job".into() }
    }

    fn known(cache: &PodCache) -> Option<Vec<(String, bool)>> {
        cache.get("job", 1).map(|pods| pods.into_iter().map(|pod| (pod.uid, pod.deleted)).collect())
    }

    /// Applies a complete list of these pods. Returns the names of the jobs that lost pods.
    fn list(cache: &PodCache, watched: &str, pods: &[ObservedPod]) -> Vec<String> {
        cache.begin_list(watched);
        for pod in pods {
            cache.apply_event(&job(), pod.clone(), false);
        }
        cache.end_list(watched).into_iter().map(|job| job.name).collect()
    }

    #[test]
    fn what_a_new_list_of_the_watch_lacks_has_gone() {
        let cache = PodCache::default();
        let [a, b] = ["a", "b"].map(|uid| pod(uid, 1, 1, None));
        assert_eq!(list(&cache, "", &[a.clone(), b.clone()]), Vec::<String>::new());
        assert!(list(&cache, "", &[a.clone(), b.clone()]).is_empty(), "nothing has changed");
        cache.begin_list("");
        assert_eq!(known(&cache).unwrap().len(), 2, "until it is complete they count");
        cache.apply_event(&job(), a.clone(), false);
        assert_eq!(cache.end_list("").len(), 1);
        assert_eq!(known(&cache), Some(vec![("a".into(), false)]));
        // the exit of the absent pod is known
        cache.apply_event(&job(), pod("a", 1, 2, Some(1)), false);
        assert_eq!(list(&cache, "", &[]), ["a"]);
        assert_eq!(known(&cache), Some(vec![("a".into(), true)]));
        assert!(list(&cache, "", &[]).is_empty(), "it has gone before");
    }

    #[test]
    fn a_list_of_one_namespace_says_nothing_of_another() {
        let cache = PodCache::default();
        list(&cache, "ml", &[pod("a", 1, 1, None)]);
        assert!(list(&cache, "other", &[]).is_empty());
        assert_eq!(known(&cache), Some(vec![("a".into(), false)]));
    }

    #[test]
    fn a_job_without_a_record_needs_no_list_while_the_watch_is_complete() {
        let cache = PodCache::default();
        assert!(!cache.has_none(&job()));
        list(&cache, "other", &[]);
        assert!(!cache.has_none(&job()));
        cache.begin_list("ml");
        assert!(!cache.has_none(&job()));
        cache.end_list("ml");
        assert!(cache.has_none(&job()));
        cache.apply_event(&job(), pod("a", 1, 1, None), false);
        assert!(!cache.has_none(&job()), "its record was taken away, its pods were not");
        list(&cache, "ml", &[]);
        assert!(cache.has_none(&job()));
        cache.begin_list("ml");
        assert!(!cache.has_none(&job()), "the watch had a gap");
    }

    #[tokio::test]
    async fn a_wait_for_the_first_list_ends_when_it_is_complete() {
        use futures::FutureExt;
        let cache = PodCache::default();
        let mut waits = Box::pin(cache.wait_for_first_list("ml"));
        assert!((&mut waits).now_or_never().is_none());
        list(&cache, "other", &[]);
        cache.begin_list("ml");
        assert!((&mut waits).now_or_never().is_none());
        cache.end_list("ml");
        waits.await;
        cache.begin_list("ml");
        cache.wait_for_first_list("ml").await;
    }

    #[test]
    fn a_pod_that_the_job_no_longer_controls_is_removed() {
        let cache = PodCache::default();
        cache.replace_with_list(&job(), 1, 1, vec![pod("a", 1, 1, None), pod("b", 1, 1, None)]);
        assert!(cache.remove_foreign("job", "a"));
        assert!(!cache.remove_foreign("job", "a"));
        assert_eq!(known(&cache), Some(vec![("b".into(), false)]));
    }

    #[test]
    fn a_gated_pod_is_pending_since_its_gate_was_removed() {
        let in_state = |state: InstanceState, version| ObservedPod { state, ..pod("a", 1, version, None) };
        let cache = PodCache::default();
        let shown = || cache.get("job", 1).unwrap()[0].clone();
        let before = now();
        cache.apply_event(&job(), in_state(InstanceState::SchedulingGated, 1), false);
        assert_eq!(shown().since, in_state(InstanceState::SchedulingGated, 1).since);
        cache.apply_event(&job(), in_state(InstanceState::Pending, 2), false);
        let since = shown().since;
        assert!(since >= before);
        assert!(!cache.apply_event(&job(), in_state(InstanceState::Pending, 3), false), "it waits on");
        let listed = cache.replace_with_list(&job(), 1, 4, vec![in_state(InstanceState::Pending, 4)]);
        assert_eq!((listed[0].since, shown().since), (since, since));
    }

    #[test]
    fn only_newer_and_different_versions_are_changes() {
        let cache = PodCache::default();
        cache.replace_with_list(&job(), 1, 5, vec![pod("a", 1, 5, None)]);
        assert!(!cache.apply_event(&job(), pod("a", 1, 6, None), false), "nothing that matters");
        assert!(cache.apply_event(&job(), pod("a", 1, 7, Some(1)), false));
        assert!(!cache.apply_event(&job(), pod("a", 1, 6, None), false), "older than what is known");
        assert!(cache.get("job", 1).unwrap()[0].has_exited());
    }

    #[test]
    fn a_pod_absent_from_a_list_is_kept_until_the_watch_delivers_its_exit() {
        let cache = PodCache::default();
        cache.replace_with_list(&job(), 1, 1, vec![pod("a", 1, 1, None)]);
        let all = cache.replace_with_list(&job(), 1, 9, vec![]);
        assert!(all[0].missing_since.is_some() && !all[0].deleted);
        assert_eq!(known(&cache), None, "the next reconcile lists again");
        assert!(cache.apply_event(&job(), pod("a", 1, 8, Some(143)), true));
        let all = cache.replace_with_list(&job(), 1, 10, vec![]);
        assert!(all[0].deleted && all[0].has_exited());
    }

    #[test]
    fn a_list_older_than_the_watch_replaces_nothing() {
        let cache = PodCache::default();
        cache.replace_with_list(&job(), 1, 5, vec![pod("a", 1, 5, None)]);
        // the list was read before the pod was deleted, and arrived afterwards
        cache.apply_event(&job(), pod("a", 1, 7, None), true);
        cache.replace_with_list(&job(), 1, 6, vec![pod("a", 1, 5, None)]);
        assert_eq!(known(&cache), Some(vec![]), "what the watch has said since counts");
    }

    #[test]
    fn exits_of_deleted_pods_are_kept_while_their_attempt_is_current() {
        let cache = PodCache::default();
        cache.replace_with_list(&job(), 1, 2, vec![pod("a", 1, 1, None), pod("b", 1, 2, None)]);
        cache.apply_event(&job(), pod("a", 1, 3, Some(137)), false);
        cache.apply_event(&job(), pod("a", 1, 4, Some(137)), true);
        cache.apply_event(&job(), pod("b", 1, 5, None), true);
        assert_eq!(known(&cache), Some(vec![("a".into(), true)]), "b went without an end");
        let all = cache.replace_with_list(&job(), 1, 6, vec![pod("c", 1, 6, None)]);
        assert!(all.iter().all(|pod| pod.missing_since.is_none()));
        assert_eq!(all.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["c", "a"]);
        // a later attempt does not need the exits of this one
        cache.apply_event(&job(), pod("d", 3, 7, None), false);
        assert_eq!(known(&cache), Some(vec![("c".into(), false), ("d".into(), false)]));
    }
}
