//! Cache of pods, fed by the watch, so that a reconcile without effect needs no API request. It may be stale: anything to be
//! recorded or done is decided from a list. Two facts are safe to take from the cache: that all pods were created, and that a
//! job without a record has none.
//!
//! kube's `reflector::Store` is not used for pods: it drops a deleted pod with its exit, doesn't say whether it is older than
//! a list, has no index by job, and holds whole objects. For PipelineJobs it is used (`controller`).
//!
//! The exit of a deleted pod is kept while its attempt is current: the kubelet writes the exit before the pod object is
//! deleted, and a list has only existing pods. Exits that happen while the operator is down are lost; their reason is
//! `Unknown`.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::ObservedPod;
use crate::requeue::RESYNC_INTERVAL;
use crate::sync::{PerJob, lock};

/// A job's pods are listed at least this often, in case the watch missed an event.
const RELIST_INTERVAL: Duration = RESYNC_INTERVAL;

/// How long a pod absent from a list keeps its last state, until the watch delivers its exit.
const MISSING_POD_GRACE: Duration = Duration::from_secs(1);

/// The pods, by their job's UID.
#[derive(Debug, Default)]
pub(crate) struct PodCache {
    jobs: PerJob<JobPods>,
    /// Namespaces whose initial list is complete; "" for all namespaces.
    synced_namespaces: Mutex<HashSet<String>>,
}

#[derive(Debug, Default)]
struct JobPods {
    all: Vec<ObservedPod>,
    /// When they were last listed; None if they must be listed again.
    listed_at: Option<Instant>,
    /// The newest resourceVersion that the watch delivered.
    newest_version: u64,
}

impl PodCache {
    /// Applies a pod event of the watch. Returns whether it changes the cached pod.
    pub(crate) fn apply_event(&self, job: &str, mut pod: ObservedPod, deleted: bool) -> bool {
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
        pods.newest_version = pods.newest_version.max(pod.version);
        let pods = &mut pods.all;
        pod.deleted = deleted;
        let before = pods.iter().position(|known| known.uid == pod.uid);
        if before.is_some_and(|at| pods[at].version > pod.version) {
            return false;
        }
        let changed = before.is_none_or(|at| !pods[at].is_no_news(&pod));
        // exits of attempts before the previous one are no longer needed
        pods.retain(|other| other.uid != pod.uid && (!other.deleted || other.attempt.saturating_add(1) >= pod.attempt));
        if !deleted || pod.has_exited() {
            pods.push(pod);
        }
        changed
    }

    /// Removes a pod that the job does not control. Returns whether it was cached.
    pub(crate) fn remove_foreign(&self, job: &str, uid: &str) -> bool {
        let mut jobs = self.jobs.lock();
        let Some(pods) = jobs.get_mut(job) else { return false };
        let before = pods.all.len();
        pods.all.retain(|known| known.uid != uid || known.deleted);
        pods.all.len() < before
    }

    /// A job's pods, including deleted ones of `attempt`; None if they may be stale.
    pub(super) fn get(&self, job: &str, attempt: u64) -> Option<Vec<ObservedPod>> {
        let jobs = self.jobs.lock();
        let pods = jobs.get(job)?;
        pods.listed_at.filter(|at| at.elapsed() < RELIST_INTERVAL)?;
        Some(pods.all.iter().filter(|pod| !pod.deleted || pod.attempt == attempt).cloned().collect())
    }

    /// Whether a job without a record has no pods. If so, the watch will deliver all pods that are created for it.
    pub(super) fn start_empty(&self, job: &str, namespace: &str) -> bool {
        let synced = lock(&self.synced_namespaces);
        if !synced.contains("") && !synced.contains(namespace) {
            return false;
        }
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
        if pods.all.is_empty() {
            pods.listed_at = Some(Instant::now());
        }
        pods.all.is_empty()
    }

    /// Replaces a job's pods by those of a list at `version`. Adds deleted pods of `attempt` whose exit is known, and those
    /// deleted just now whose exit the watch has not yet delivered. Returns all.
    pub(super) fn replace_with_list(
        &self,
        job: &str,
        attempt: u64,
        version: u64,
        mut listed: Vec<ObservedPod>,
    ) -> Vec<ObservedPod> {
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
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
        let complete = listed.iter().all(|pod| pod.missing_since.is_none());
        pods.listed_at = None;
        // otherwise the watch is already newer than the list
        if version >= pods.newest_version {
            pods.all.clone_from(&listed);
            pods.listed_at = complete.then_some(now);
        }
        listed
    }

    /// The watch of a namespace (re)starts: events may have been missed, so the cached pods must be listed again.
    pub(crate) fn invalidate(&self, namespace: &str) {
        lock(&self.synced_namespaces).remove(namespace);
        self.jobs.lock().values_mut().for_each(|pods| pods.listed_at = None);
    }

    /// The initial list of the watch is complete. It has no events for pods deleted before.
    pub(crate) fn mark_synced(&self, namespace: &str) {
        self.invalidate(namespace);
        lock(&self.synced_namespaces).insert(namespace.to_owned());
    }

    /// Removes the entries of jobs that no longer exist.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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

    fn known(cache: &PodCache) -> Option<Vec<(String, bool)>> {
        cache.get("job", 1).map(|pods| pods.into_iter().map(|pod| (pod.uid, pod.deleted)).collect())
    }

    #[test]
    fn the_cache_is_stale_before_a_list_and_after_a_gap() {
        let cache = PodCache::default();
        assert!(cache.apply_event("job", pod("a", 1, 1, None), false));
        assert_eq!(known(&cache), None);
        cache.replace_with_list("job", 1, 1, vec![pod("a", 1, 1, None)]);
        assert_eq!(known(&cache), Some(vec![("a".into(), false)]));
        cache.invalidate("");
        assert_eq!(known(&cache), None);
    }

    #[test]
    fn a_job_without_a_record_needs_no_list_once_the_namespace_is_synced() {
        let cache = PodCache::default();
        assert!(!cache.start_empty("job", "ml"));
        cache.mark_synced("other");
        assert!(!cache.start_empty("job", "ml"));
        cache.mark_synced("ml");
        assert!(cache.start_empty("job", "ml"));
        cache.apply_event("job", pod("a", 1, 1, None), false);
        assert_eq!(known(&cache), Some(vec![("a".into(), false)]));
        assert!(!cache.start_empty("job", "ml"), "its record was taken away, its pods were not");
        cache.invalidate("ml");
        assert_eq!(known(&cache), None);
        assert!(!cache.start_empty("another", "ml"), "the watch had a gap");
        cache.mark_synced("");
        assert!(cache.start_empty("another", "ml"), "all namespaces are watched");
    }

    #[test]
    fn a_pod_that_the_job_no_longer_controls_is_removed() {
        let cache = PodCache::default();
        cache.replace_with_list("job", 1, 1, vec![pod("a", 1, 1, None), pod("b", 1, 1, None)]);
        assert!(cache.remove_foreign("job", "a"));
        assert!(!cache.remove_foreign("job", "a"));
        assert_eq!(known(&cache), Some(vec![("b".into(), false)]));
    }

    #[test]
    fn only_newer_and_different_versions_are_changes() {
        let cache = PodCache::default();
        cache.replace_with_list("job", 1, 5, vec![pod("a", 1, 5, None)]);
        assert!(!cache.apply_event("job", pod("a", 1, 6, None), false), "nothing that matters");
        assert!(cache.apply_event("job", pod("a", 1, 7, Some(1)), false));
        assert!(!cache.apply_event("job", pod("a", 1, 6, None), false), "older than what is known");
        assert!(cache.get("job", 1).unwrap()[0].has_exited());
    }

    #[test]
    fn a_pod_absent_from_a_list_is_kept_until_the_watch_delivers_its_exit() {
        let cache = PodCache::default();
        cache.replace_with_list("job", 1, 1, vec![pod("a", 1, 1, None)]);
        let all = cache.replace_with_list("job", 1, 9, vec![]);
        assert!(all[0].missing_since.is_some() && !all[0].deleted);
        assert_eq!(known(&cache), None, "the next reconcile lists again");
        assert!(cache.apply_event("job", pod("a", 1, 8, Some(143)), true));
        let all = cache.replace_with_list("job", 1, 10, vec![]);
        assert!(all[0].deleted && all[0].has_exited());
    }

    #[test]
    fn a_list_older_than_the_watch_is_stale() {
        let cache = PodCache::default();
        cache.replace_with_list("job", 1, 5, vec![pod("a", 1, 5, None)]);
        // the list was read before the pod was deleted, and arrived afterwards
        cache.apply_event("job", pod("a", 1, 7, None), true);
        cache.replace_with_list("job", 1, 6, vec![pod("a", 1, 5, None)]);
        assert_eq!(known(&cache), None);
        cache.replace_with_list("job", 1, 7, vec![]);
        assert_eq!(known(&cache), Some(vec![]));
    }

    #[test]
    fn exits_of_deleted_pods_are_kept_while_their_attempt_is_current() {
        let cache = PodCache::default();
        cache.replace_with_list("job", 1, 2, vec![pod("a", 1, 1, None), pod("b", 1, 2, None)]);
        cache.apply_event("job", pod("a", 1, 3, Some(137)), false);
        cache.apply_event("job", pod("a", 1, 4, Some(137)), true);
        cache.apply_event("job", pod("b", 1, 5, None), true);
        assert_eq!(known(&cache), Some(vec![("a".into(), true)]), "b went without an end");
        let all = cache.replace_with_list("job", 1, 6, vec![pod("c", 1, 6, None)]);
        assert!(all.iter().all(|pod| pod.missing_since.is_none()));
        assert_eq!(all.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["c", "a"]);
        // a later attempt does not need the exits of this one
        cache.apply_event("job", pod("d", 3, 7, None), false);
        assert_eq!(known(&cache), Some(vec![("c".into(), false), ("d".into(), false)]));
    }
}
