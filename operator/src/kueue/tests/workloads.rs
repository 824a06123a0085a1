//! Tests of the Workloads that the watch delivers.

use kube::runtime::watcher::Event;
use stagecoach_lifecycle::{AttemptPhase, JobOutcome, UnixMillis};

use super::{demand, job, workload};
use crate::build::kueue::Workload;
use crate::kueue::{NotListed, WorkloadCache};

/// Returns a Workload of the job whose name is the same for all values of `uid`.
fn stored(uid: &str, version: u64) -> Workload {
    let mut workload = (*workload(&demand(false, 2), 1, &[], None)).clone();
    workload.metadata.uid = Some(uid.to_owned());
    workload.metadata.resource_version = Some(version.to_string());
    workload
}

/// Returns the UIDs of the job's Workloads.
fn uids(cache: &WorkloadCache) -> Result<Vec<String>, NotListed> {
    let workloads = cache.of(&job(), None)?;
    Ok(workloads.iter().filter_map(|workload| workload.metadata.uid.clone()).collect())
}

#[test]
fn late_events_of_a_deleted_workload_do_not_hide_its_successor() {
    let cache = WorkloadCache::default();
    cache.apply("", Event::Init);
    cache.apply("", Event::InitApply(stored("old", 3)));
    cache.apply("", Event::InitDone);
    // the operator deletes the Workload, and creates another Workload of this name
    cache.remove(&stored("old", 3));
    cache.insert(stored("new", 6));
    for late in [Event::Apply(stored("old", 4)), Event::Delete(stored("old", 5))] {
        cache.apply("", late);
        assert_eq!(uids(&cache).unwrap(), ["new"]);
    }
    cache.apply("", Event::Delete(stored("new", 7)));
    assert_eq!(uids(&cache).unwrap(), [""; 0]);
}

#[test]
fn before_the_first_list_the_workloads_are_unknown_and_the_failure_of_the_watch_is_known() {
    let cache = WorkloadCache::default();
    let unknown = NotListed { failure: None };
    assert_eq!(uids(&cache), Err(unknown.clone()), "the watch has not started");
    cache.apply("", Event::Init);
    assert_eq!(uids(&cache), Err(unknown.clone()));
    assert!(cache.watch_failed("", "404 page not found"));
    assert!(!cache.watch_failed("", "403 forbidden"), "only the first failure is logged");
    let failed = uids(&cache).unwrap_err();
    let message = failed.message().unwrap();
    assert!(message.contains("kueue.x-k8s.io/v1beta2") && message.ends_with("403 forbidden"), "{message}");
    // only a job without pods learns of the failure, because the pods of another job run under an admission
    let running = AttemptPhase::Running { not_before: UnixMillis(0), all_created: true };
    let phases = [AttemptPhase::Idle, AttemptPhase::Finished(JobOutcome::Complete), running, AttemptPhase::Draining];
    assert_eq!(phases.each_ref().map(|phase| unknown.blocks(phase)), [true; 4]);
    assert_eq!(phases.each_ref().map(|phase| failed.blocks(phase)), [false, false, true, true]);

    cache.apply("", Event::InitDone);
    assert_eq!(uids(&cache), Ok(Vec::new()));
    assert!(!cache.watch_failed("", "gone"), "the Workloads of the last list are known");
    assert_eq!(uids(&cache), Ok(Vec::new()));
}
