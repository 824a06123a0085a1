//! What the watch has brought of the pods, so that a look from which nothing follows asks the API server nothing. It may
//! lag behind: whatever is to be recorded or done is decided from a list, but for what no lag can make wrong: that all pods
//! were made, and that there are none of a job of which nothing is recorded.
//!
//! How a pod ended is kept while its attempt lasts: a kubelet writes the end before the pod goes, and a list shows what is
//! there alone. After a restart of the operator what was missed is missed: the cause is then `Unknown`.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Pod;

/// After how long a job's pods are listed anew, whatever the watch says.
const HOLDS: Duration = Duration::from_secs(300);

/// For how long a pod that no list has is taken for what it was last: how it ended is on its way.
const WAIT: Duration = Duration::from_secs(1);

/// The pods, by their job's UID.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    jobs: Mutex<HashMap<String, Pods>>,
    /// The namespaces of which the watch has brought all pods; an empty name stands for all namespaces.
    complete: Mutex<HashSet<String>>,
}

#[derive(Debug, Default)]
struct Pods {
    all: Vec<Pod>,
    /// When they were last listed; none if that has to be done again.
    listed: Option<Instant>,
    /// The newest version that the watch brought.
    newest: u64,
}

impl Watched {
    /// Notes a pod that the watch brought, `deleted` or not; whether that is any news.
    pub(crate) fn note(&self, job: &str, mut pod: Pod, deleted: bool) -> bool {
        let mut jobs = self.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
        pods.newest = pods.newest.max(pod.version);
        let pods = &mut pods.all;
        pod.gone = deleted;
        let before = pods.iter().position(|known| known.uid == pod.uid);
        if before.is_some_and(|at| pods[at].version > pod.version) {
            return false;
        }
        let news = before.is_none_or(|at| !pods[at].is_as(&pod));
        // an attempt that is over needs no explanation any more
        pods.retain(|other| {
            other.uid != pod.uid && (!other.gone || other.instance.attempt.saturating_add(1) >= pod.instance.attempt)
        });
        if !deleted || pod.has_ended() {
            pods.push(pod);
        }
        news
    }

    /// Notes that a pod is none of the job's; whether it was one.
    pub(crate) fn note_foreign(&self, job: &str, uid: &str) -> bool {
        let mut jobs = self.lock();
        let Some(pods) = jobs.get_mut(job) else { return false };
        let before = pods.all.len();
        pods.all.retain(|known| known.uid != uid || known.gone);
        pods.all.len() < before
    }

    /// What is known of a job's pods, of those that are gone only the ones of `attempt`; nothing if that can't be relied on.
    pub(super) fn of(&self, job: &str, attempt: u64) -> Option<Vec<Pod>> {
        let jobs = self.lock();
        let pods = jobs.get(job)?;
        pods.listed.filter(|at| at.elapsed() < HOLDS)?;
        Some(pods.all.iter().filter(|pod| !pod.gone || pod.instance.attempt == attempt).cloned().collect())
    }

    /// Whether a job of which nothing is recorded has no pods; if so, the watch brings all that it will have.
    pub(super) fn begin(&self, job: &str, namespace: &str) -> bool {
        let complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        if !complete.contains("") && !complete.contains(namespace) {
            return false;
        }
        let mut jobs = self.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
        if pods.all.is_empty() {
            pods.listed = Some(Instant::now());
        }
        pods.all.is_empty()
    }

    /// A job's pods were `listed`, and no others, at `version`; adds those of `attempt` that ended and are gone, and those
    /// that went just now, of which the watch will say how.
    pub(super) fn list(&self, job: &str, attempt: u64, version: u64, mut listed: Vec<Pod>) -> Vec<Pod> {
        let mut jobs = self.lock();
        let pods = jobs.entry(job.to_owned()).or_default();
        let now = Instant::now();
        let unlisted: Vec<Pod> = pods
            .all
            .iter()
            .filter(|pod| pod.instance.attempt == attempt && listed.iter().all(|there| there.uid != pod.uid))
            .map(|pod| match pod.has_ended() {
                true => Pod { gone: true, ..pod.clone() },
                false => Pod { missing: pod.missing.or(Some(now)), ..pod.clone() },
            })
            .filter(|pod| pod.missing.is_none_or(|since| since.elapsed() < WAIT))
            .collect();
        listed.extend(unlisted);
        let complete = listed.iter().all(|pod| pod.missing.is_none());
        pods.listed = None;
        // else the watch has overtaken the list
        if version >= pods.newest {
            pods.all.clone_from(&listed);
            pods.listed = complete.then_some(now);
        }
        listed
    }

    /// The watch of a namespace begins, maybe anew after a gap: what it knows can't be relied on.
    pub(crate) fn doubt(&self, namespace: &str) {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
        self.lock().values_mut().for_each(|pods| pods.listed = None);
    }

    /// The watch has brought all pods that are there. What went meanwhile it does not tell.
    pub(crate) fn complete(&self, namespace: &str) {
        self.doubt(namespace);
        self.complete.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace.to_owned());
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.lock().retain(|uid, _| living(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pods>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, attempt: u64, version: u64, exit: Option<i32>) -> Pod {
        let labels = json!({"stagecoach.dev/stage": "0", "stagecoach.dev/attempt": attempt.to_string()});
        let terminated = exit.map_or(Value::Null, |code| json!({"exitCode": code}));
        let status = json!({"containerStatuses": [{"name": "trainer", "state": {"terminated": terminated}}]});
        let owner = json!({"apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "name": "a", "uid": "job", "controller": true});
        let metadata =
            json!({"uid": uid, "labels": labels, "resourceVersion": version.to_string(), "ownerReferences": [owner]});
        let object = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
        Pod::of(&object, "job").unwrap()
    }

    fn known(watched: &Watched) -> Option<Vec<(String, bool)>> {
        watched.of("job", 1).map(|pods| pods.into_iter().map(|pod| (pod.uid, pod.gone)).collect())
    }

    #[test]
    fn nothing_is_relied_on_before_a_list_and_after_a_gap() {
        let watched = Watched::default();
        assert!(watched.note("job", pod("a", 1, 1, None), false));
        assert_eq!(known(&watched), None);
        watched.list("job", 1, 1, vec![pod("a", 1, 1, None)]);
        assert_eq!(known(&watched), Some(vec![("a".into(), false)]));
        watched.doubt("");
        assert_eq!(known(&watched), None);
    }

    #[test]
    fn a_job_without_a_record_needs_no_list_once_the_watch_is_complete() {
        let watched = Watched::default();
        assert!(!watched.begin("job", "ml"));
        watched.complete("other");
        assert!(!watched.begin("job", "ml"));
        watched.complete("ml");
        assert!(watched.begin("job", "ml"));
        watched.note("job", pod("a", 1, 1, None), false);
        assert_eq!(known(&watched), Some(vec![("a".into(), false)]));
        assert!(!watched.begin("job", "ml"), "its record was taken away, its pods were not");
        watched.doubt("ml");
        assert_eq!(known(&watched), None);
        assert!(!watched.begin("another", "ml"), "the watch had a gap");
        watched.complete("");
        assert!(watched.begin("another", "ml"), "all namespaces are watched");
    }

    #[test]
    fn a_pod_that_no_longer_belongs_to_the_job_is_none_of_its_pods() {
        let watched = Watched::default();
        watched.list("job", 1, 1, vec![pod("a", 1, 1, None), pod("b", 1, 1, None)]);
        assert!(watched.note_foreign("job", "a"));
        assert!(!watched.note_foreign("job", "a"));
        assert_eq!(known(&watched), Some(vec![("b".into(), false)]));
    }

    #[test]
    fn only_what_differs_and_is_no_older_is_news() {
        let watched = Watched::default();
        watched.list("job", 1, 5, vec![pod("a", 1, 5, None)]);
        assert!(!watched.note("job", pod("a", 1, 6, None), false), "nothing that matters");
        assert!(watched.note("job", pod("a", 1, 7, Some(1)), false));
        assert!(!watched.note("job", pod("a", 1, 6, None), false), "older than what is known");
        assert!(watched.of("job", 1).unwrap()[0].has_ended());
    }

    #[test]
    fn a_pod_that_a_list_lacks_is_waited_for_until_the_watch_says_how_it_ended() {
        let watched = Watched::default();
        watched.list("job", 1, 1, vec![pod("a", 1, 1, None)]);
        let all = watched.list("job", 1, 9, vec![]);
        assert!(all[0].missing.is_some() && !all[0].gone);
        assert_eq!(known(&watched), None, "the next look lists again");
        assert!(watched.note("job", pod("a", 1, 8, Some(143)), true));
        let all = watched.list("job", 1, 10, vec![]);
        assert!(all[0].gone && all[0].has_ended());
    }

    #[test]
    fn a_list_that_the_watch_has_overtaken_is_not_relied_on() {
        let watched = Watched::default();
        watched.list("job", 1, 5, vec![pod("a", 1, 5, None)]);
        // asked before the pod went, answered after
        watched.note("job", pod("a", 1, 7, None), true);
        watched.list("job", 1, 6, vec![pod("a", 1, 5, None)]);
        assert_eq!(known(&watched), None);
        watched.list("job", 1, 7, vec![]);
        assert_eq!(known(&watched), Some(vec![]));
    }

    #[test]
    fn ends_outlive_their_pods_for_as_long_as_the_attempt() {
        let watched = Watched::default();
        watched.list("job", 1, 2, vec![pod("a", 1, 1, None), pod("b", 1, 2, None)]);
        watched.note("job", pod("a", 1, 3, Some(137)), false);
        watched.note("job", pod("a", 1, 4, Some(137)), true);
        watched.note("job", pod("b", 1, 5, None), true);
        assert_eq!(known(&watched), Some(vec![("a".into(), true)]), "b went without an end");
        let all = watched.list("job", 1, 6, vec![pod("c", 1, 6, None)]);
        assert!(all.iter().all(|pod| pod.missing.is_none()));
        assert_eq!(all.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["c", "a"]);
        // another attempt needs no explanation of this one
        watched.note("job", pod("d", 3, 7, None), false);
        assert_eq!(known(&watched), Some(vec![("c".into(), false), ("d".into(), false)]));
    }
}
