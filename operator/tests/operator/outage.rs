//! Tests of a restart of the API server, and of jobs that change while the operator is down.

use crate::support::{exclusive, shared};
use serde_json::json;
use stagecoach_cluster::until;

#[test]
fn changes_during_an_outage_are_reconciled() {
    let cluster = exclusive();
    cluster.create("kept", json!({}));
    cluster.create("failing", json!({}));
    cluster.wait_running("kept", 1);
    cluster.wait_running("failing", 1);
    cluster.plane.restart_api_server();
    cluster.create("later", json!({}));
    cluster.wait_running("later", 1);
    cluster.kill_operator();
    cluster.kubelet.pod("failing-1-1").exit(1, "");
    cluster.edit("later", json!({"stages": 1}));
    cluster.run_operator(&[]);
    let failing = cluster.wait_running("failing", 2);
    assert_eq!(
        (&failing["status"]["lastFailure"]["stage"], &failing["status"]["restarts"]["total"]),
        (&json!(1), &json!(1))
    );
    cluster.wait_running("later", 2);
    // the running attempt is kept
    let kept = cluster.wait_running("kept", 1);
    assert_eq!(kept["status"]["restarts"]["total"], 0);
    assert!(cluster.operators_are_running());
}

#[test]
fn a_drain_that_takes_the_operator_too_is_a_drain() {
    let (cluster, job) = (shared(), "drained/job");
    cluster.create_namespace("drained");
    let operator = || cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "drained")]);
    let first = operator();
    cluster.create(job, json!({}));
    cluster.wait_running(job, 1);
    drop(first);
    for pod in ["job-0-1", "job-1-1"] {
        cluster.plane.client().delete(&format!("/api/v1/namespaces/drained/pods/{pod}"));
    }
    until("the pods to go", || cluster.pods(job).is_empty().then_some(()));
    let second = operator();
    let drained = cluster.wait_running(job, 2);
    assert_eq!(drained["status"]["lastFailure"]["reason"], "Drained");
    // delete one of the pods without a grace period
    drop(second);
    cluster.plane.client().delete("/api/v1/namespaces/drained/pods/job-1-2?gracePeriodSeconds=0");
    until("the pod to go", || (cluster.pods(job).len() == 1).then_some(()));
    let _third = operator();
    let deleted = cluster.wait_running(job, 3);
    assert_eq!(deleted["status"]["lastFailure"]["reason"], "Unknown");
    assert_eq!(deleted["status"]["restarts"], json!({"total": 2, "counted": 0, "replaced": 0, "budgetLeft": 3}));
}
