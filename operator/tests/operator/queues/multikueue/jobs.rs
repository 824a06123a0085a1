//! Tests of the lifecycle of a job that MultiKueue sends, and of changes by its user.

use serde_json::{Value, json};
use stagecoach_cluster::{until, until_or_tell};

use super::{Clusters, clusters, sent};
use crate::support::{has_condition, jobs, path};

#[test]
fn a_job_of_the_manager_runs_in_the_worker() {
    let clusters = clusters();
    let Clusters { manager, worker } = clusters;
    clusters.dispatch("away", "team-a", json!({}));
    let copy = worker.cluster.job("away").unwrap();
    assert_eq!(copy["spec"]["managedBy"], "stagecoach.dev/operator");
    let workload = worker.workload("away").unwrap();
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], copy["metadata"]["uid"]);
    assert_eq!(worker.cluster.pods("away").len(), 2);
    let job = manager.cluster.wait("away", "whole", |job| job["status"]["readyStages"] == 2);
    assert!(has_condition(&job, "Admitted", "True", "Admitted"), "{:#}", job["status"]);
    let workload = manager.wait_workload("away", "PodsReady", "True");
    assert_eq!(workload["status"]["clusterName"], "east");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], job["metadata"]["uid"]);
    clusters.assert_left_alone("away");

    worker.cluster.finish("away", 1, 2);
    let job = manager.cluster.wait_phase("away", "Complete");
    assert!(has_condition(&job, "Complete", "True", "Complete"), "{:#}", job["status"]);
    until("the Workload to be finished", || {
        has_condition(manager.workloads("away").first()?, "Finished", "True", "Succeeded").then_some(())
    });
    clusters.wait_gone("away");
    assert_eq!(manager.workloads("away").len(), 1, "the job is not queued again");
    clusters.assert_left_alone("away");
}

#[test]
fn a_job_that_is_deleted_at_the_manager_leaves_the_worker() {
    let clusters = clusters();
    clusters.dispatch("recalled", "team-a", json!({}));
    clusters.manager.cluster.plane.client().delete(&path("recalled"));
    clusters.wait_gone("recalled");
    until("its Workload to go", || clusters.manager.workloads("recalled").is_empty().then_some(()));
}

/// The operator of the worker cluster must not delete the copy of the job, because MultiKueue would send the job again.
#[test]
fn a_time_to_live_counts_at_the_manager() {
    let clusters = clusters();
    clusters.dispatch("fleeting", "team-a", json!({"spec": {"ttlSecondsAfterFinished": 0}}));
    clusters.worker.cluster.finish("fleeting", 1, 2);
    until("the job to go", || clusters.manager.cluster.job("fleeting").is_none().then_some(()));
    clusters.wait_gone("fleeting");
}

#[test]
fn a_suspended_or_changed_job_saves_in_the_worker_and_is_sent_again() {
    let clusters = clusters();
    let manager = &clusters.manager;
    clusters.dispatch("paused", "team-a", json!({}));
    manager.cluster.edit("paused", json!({"suspend": true}));
    clusters.wait_gone("paused");
    until("its Workload to go", || manager.workloads("paused").is_empty().then_some(()));
    let events = || clusters.worker.cluster.events("paused");
    let drains = |count| (events().iter().filter(|event| *event == "Draining").count() == count).then_some(());
    until_or_tell("the event of the drain", || drains(1), || format!(": {:?}", events()));
    assert_eq!(manager.cluster.job("paused").unwrap()["status"]["phase"], "Pending");

    manager.cluster.edit("paused", json!({"suspend": false}));
    clusters.wait_copy("paused");
    manager.cluster.edit("paused", json!({"stages": 3}));
    until("a copy with three stages", || (clusters.worker.cluster.job("paused")?["spec"]["stages"] == 3).then_some(()));
    clusters.wait_copy("paused");
    assert_eq!(clusters.worker.cluster.pods("paused").len(), 3);
    until_or_tell("the event of the second drain", || drains(2), || format!(": {:?}", events()));
    clusters.assert_left_alone("paused");
}

/// The worker cluster has too little quota for the job, so no running copy has to save first. Kueue itself cancels a
/// reservation of quota if the Workload was never admitted.
#[test]
fn a_job_that_waits_for_a_worker_leaves_the_queue_at_once() {
    let clusters = clusters();
    let manager = &clusters.manager;
    clusters.add_queues("default", "full", "workers", [200, 100], json!({}));
    let day = json!({"spec": {"terminationGracePeriodSeconds": 86400}});
    manager.create("waiting", "full", sent(json!({"spec": {"template": day}})));
    manager.wait_workload("waiting", "QuotaReserved", "True");
    until("the Workload in the worker", || clusters.worker.workload("waiting"));
    manager.cluster.edit("waiting", json!({"suspend": true}));
    until("its Workload to go", || manager.workloads("waiting").is_empty().then_some(()));
}

#[test]
fn a_refusal_of_the_workload_is_an_event() {
    let clusters = clusters();
    let class = json!({"kueue.x-k8s.io/priority-class": "none"});
    let object = json!({"metadata": {"labels": class}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}});
    clusters.manager.create("refused", "team-a", object);
    let note = until("the event", || {
        let notes = clusters.manager.cluster.event_notes("refused");
        notes.into_iter().find(|note| note.contains("PriorityClassMissing"))
    });
    assert!(note.contains("the WorkloadPriorityClass none does not exist"), "{note}");
    let path = format!("{}/refused", jobs("default"));
    assert_eq!(clusters.manager.cluster.plane.get(&path).unwrap()["status"], Value::Null);
}
