//! Tests of the events and the lists of the watch.

use serde_json::{Value, json};
use stagecoach_lifecycle::InstanceState;

use super::super::now;
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
    assert_eq!(known(&cache).unwrap().len(), 2, "the pods count until the list is complete");
    cache.apply_event(&job(), a.clone(), false);
    assert_eq!(cache.end_list("").len(), 1);
    assert_eq!(known(&cache), Some(vec![("a".into(), false)]));
    // the exit of the absent pod is known
    cache.apply_event(&job(), pod("a", 1, 2, Some(1)), false);
    assert_eq!(list(&cache, "", &[]), ["a"]);
    assert_eq!(known(&cache), Some(vec![("a".into(), true)]));
    assert!(list(&cache, "", &[]).is_empty(), "the loss of the pod was reported before");
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
    assert!(!cache.has_none(&job()), "the job has no record but still has pods");
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
    assert_eq!(known(&cache), Some(vec![]), "the newer events of the watch count");
}

#[test]
fn exits_of_deleted_pods_are_kept_while_their_attempt_is_current() {
    let cache = PodCache::default();
    cache.replace_with_list(&job(), 1, 2, vec![pod("a", 1, 1, None), pod("b", 1, 2, None)]);
    cache.apply_event(&job(), pod("a", 1, 3, Some(137)), false);
    cache.apply_event(&job(), pod("a", 1, 4, Some(137)), true);
    cache.apply_event(&job(), pod("b", 1, 5, None), true);
    assert_eq!(known(&cache), Some(vec![("a".into(), true)]), "pod b was deleted without an exit");
    let all = cache.replace_with_list(&job(), 1, 6, vec![pod("c", 1, 6, None)]);
    assert!(all.iter().all(|pod| pod.missing_since.is_none()));
    assert_eq!(all.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["c", "a"]);
    // a user can create a pod with any attempt in its label
    cache.apply_event(&job(), pod("d", u64::MAX, 7, None), false);
    assert_eq!(known(&cache), Some(["c", "a", "d"].map(|uid| (uid.into(), uid == "a")).into()));
    // a later attempt does not need the exits of attempt 1
    assert_eq!(cache.get("job", 2).unwrap().len(), 2);
    assert_eq!(known(&cache), Some(vec![("c".into(), false), ("d".into(), false)]));
}
