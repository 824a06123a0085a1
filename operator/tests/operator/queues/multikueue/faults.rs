//! Tests of faults while MultiKueue runs a job in a worker cluster: an eviction, a lost worker cluster, and a crash of
//! the operator.

use serde_json::{Value, json};
use stagecoach_cluster::kueue::collection;
use stagecoach_cluster::{until, until_or_tell};

use super::{Clusters, SECRETS, clusters, sent, template};
use crate::crashes::{Scenario, ScenarioCluster, ScenarioRun, crash_after_each_write};
use crate::queues::crashes::{HOLDS, add_workloads, wait_reported};
use crate::support::condition_of;

impl Clusters {
    /// Waits until Kueue has evicted a job's Workload in the manager cluster and released the Workload's reservation of
    /// quota. Kueue may already have reserved the quota again.
    fn wait_released(&self, name: &str) {
        let is_released = |workload: &Value| {
            let evictions = workload["status"]["schedulingStats"]["evictions"].as_array();
            let is_evicted = condition_of(workload, "Evicted").is_some_and(|evicted| evicted["status"] == "True");
            let is_reserved = condition_of(workload, "QuotaReserved").is_some_and(|it| it["status"] == "True");
            evictions.is_some_and(|evictions| !evictions.is_empty()) && !(is_evicted && is_reserved)
        };
        until_or_tell(
            "the manager to give the reservation back",
            || self.manager.workload(name).is_some_and(|workload| is_released(&workload)).then_some(()),
            || self.details(name),
        );
    }
}

#[test]
fn an_evicted_copy_returns_to_the_queue() {
    let clusters = clusters();
    let worker = &clusters.worker;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    clusters.add_queues("default", "narrow", "workers", [800, 200], preemption);
    clusters.dispatch("evicted", "narrow", json!({}));
    let first = worker.cluster.job("evicted").unwrap()["metadata"]["uid"].clone();
    // a job that a user creates in the worker cluster itself preempts the copy
    let labels = json!({"kueue.x-k8s.io/priority-class": "high"});
    worker.create("local", "narrow", json!({"metadata": {"labels": labels}, "spec": {"template": template()}}));
    worker.cluster.wait_running("local", 1);
    assert!(worker.cluster.pods("evicted").is_empty(), "the quota is free only after the pods");
    let events = until("the event of the drain", || {
        Some(worker.cluster.events("evicted")).filter(|events| events.iter().any(|event| event == "Draining"))
    });
    assert!(events.iter().any(|event| event == "AdmissionLost"), "{events:?}");
    clusters.wait_released("evicted");
    worker.cluster.finish("local", 1, 2);
    // MultiKueue deletes the copy if it observes the manager's Workload without a reservation. Otherwise, the same copy
    // stays in the worker's queue, and its next attempt is number 2.
    clusters.wait_attempt("evicted", |uid, attempt| attempt == 1 + u64::from(*uid == first));
}

#[test]
fn a_copy_stops_with_the_queue_of_the_manager() {
    let clusters = clusters();
    let manager = &clusters.manager;
    clusters.add_queues("default", "held", "workers", [200, 200], json!({}));
    clusters.dispatch("held", "held", json!({}));
    // wait for the admission: before an admission, Kueue would cancel the reservation without an eviction
    manager.wait_workload("held", "Admitted", "True");
    let stop = |policy: &str| {
        let path = format!("{}/default-held", collection("ClusterQueue", ""));
        manager.cluster.plane.client().patch(&path, &json!({"spec": {"stopPolicy": policy}})).unwrap();
    };
    stop("HoldAndDrain");
    clusters.wait_gone("held");
    let workload = manager.wait_workload("held", "QuotaReserved", "False");
    assert_eq!(condition_of(&workload, "Evicted").unwrap()["reason"], "ClusterQueueStopped");
    stop("None");
    clusters.wait_copy("held");
}

/// After the connection to the worker cluster is lost, the manager cluster receives no status of the copy. The operator
/// of the manager therefore can't observe whether the copy has stopped.
#[test]
fn the_reservation_of_a_job_in_a_lost_worker_is_given_back() {
    let clusters = clusters();
    let manager = &clusters.manager.cluster.plane;
    clusters.add_kubeconfig("west");
    manager.apply(
        "
apiVersion: kueue.x-k8s.io/v1beta2
kind: MultiKueueCluster
metadata: {name: west}
spec:
  clusterSource: {kubeConfig: {locationType: Secret, location: west-kubeconfig}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: MultiKueueConfig
metadata: {name: west}
spec: {clusters: [west]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: west}
spec:
  controllerName: kueue.x-k8s.io/multikueue
  parameters: {apiGroup: kueue.x-k8s.io, kind: MultiKueueConfig, name: west}
",
    );
    clusters.wait_connected("west");
    clusters.add_queues("default", "west", "west", [200, 200], json!({}));
    clusters.dispatch("lost", "west", json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}));
    manager.client().delete(&format!("{SECRETS}/west-kubeconfig"));
    clusters.wait_released("lost");
}

/// Returns a job that is in the queue of its namespace, and that MultiKueue sends to the worker cluster.
fn in_queue(spec: Value) -> Value {
    sent(json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": spec}))
}

/// Creates the namespace of a run in the worker cluster, and the run's queues in both clusters.
fn with_queues(run: &ScenarioRun) {
    let clusters = clusters();
    clusters.worker.cluster.create_namespace(&run.namespace);
    clusters.add_queues(&run.namespace, "team", "workers", [400, 400], json!({}));
}

fn dispatched(run: &ScenarioRun) {
    with_queues(run);
    run.running(1);
    wait_reported(run);
}

/// Returns the state of a run's job: the status that MultiKueue copied to the manager cluster, the number of pods in
/// both clusters, and the Workloads in the manager cluster.
fn end_of(run: &ScenarioRun) -> Value {
    let status = &run.cluster.job(&run.job()).unwrap_or_default()["status"];
    let attempt = &status["attempt"];
    let pods = run.cluster.plane.client().list(&format!("/api/v1/namespaces/{}/pods", run.namespace));
    let mut end = json!({
        "phase": status["phase"],
        "attempt": [attempt["number"], attempt["stages"]],
        "podsOfManager": pods.len(),
        "podsOfWorker": clusters().worker.cluster.pods(&run.job()).len(),
    });
    add_workloads(run, &mut end);
    end
}

#[test]
fn a_crash_between_any_two_writes_changes_nothing_at_the_manager() {
    let end = |phase: &str, stages: u32, pods: u32, workloads: Value| {
        json!({
            "phase": phase, "attempt": [1, stages], "podsOfManager": 0, "podsOfWorker": pods, "workloads": workloads,
        })
    };
    let scenarios = [
        Scenario {
            name: "dispatch",
            spec: in_queue(json!({"suspend": true})),
            setup: with_queues,
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": false})),
            end: end("Running", 2, 2, json!([["1", [2], HOLDS]])),
        },
        Scenario {
            name: "recall",
            spec: in_queue(json!({})),
            setup: dispatched,
            action: |run| run.cluster.edit(&run.job(), json!({"suspend": true})),
            end: end("Pending", 2, 0, json!([])),
        },
        Scenario {
            name: "resend",
            spec: in_queue(json!({})),
            setup: dispatched,
            action: |run| run.cluster.edit(&run.job(), json!({"stages": 3})),
            end: end("Running", 3, 3, json!([["1", [3], HOLDS]])),
        },
    ];
    let site = ScenarioCluster {
        cluster: &clusters().manager.cluster,
        env: &[("STAGECOACH_KUEUE", "true")],
        add_to_end: |run, end| *end = end_of(run),
    };
    crash_after_each_write(&site, &scenarios);
}
