//! Tests of the replacement of a lost stage: the stage gets a new pod, and the pods of the other stages stay.

use serde_json::{Value, json};
use stagecoach_api::contract::{GroupStatus, LostStage, StagePhase, StageStatus, env};
use stagecoach_api::job::ProgressStatus;
use stagecoach_cluster::until;

use crate::support::{TestCluster, shared};

/// Creates a job of three stages, with `reformTimeoutSeconds` so that the operator replaces a lost stage, and waits
/// until the job runs. Returns the UIDs of the job's pods, ordered by stage.
fn training(cluster: &TestCluster, name: &str) -> Vec<Value> {
    cluster.create(name, json!({"stages": 3, "restart": {"reformTimeoutSeconds": 60}}));
    cluster.wait_running(name, 1);
    uids(cluster, name)
}

/// Returns the UIDs of the job's pods, ordered by stage.
fn uids(cluster: &TestCluster, name: &str) -> Vec<Value> {
    let mut pods = cluster.pods(name);
    pods.sort_by_key(|pod| pod["metadata"]["labels"]["stagecoach.dev/stage"].to_string());
    pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
}

/// Waits until the status shows `restarts` restarts, all stages are ready again, and no replaced pod is left.
fn whole_again(cluster: &TestCluster, name: &str, restarts: u64) -> Value {
    let is_whole = |job: &Value| {
        let status = &job["status"];
        status["restarts"]["total"] == restarts && status["phase"] == "Running" && status["readyStages"] == 3
    };
    let job = cluster.wait(name, "whole again", is_whole);
    until("the removal of what was replaced", || (cluster.pods(name).len() == 3).then_some(()));
    job
}

#[test]
fn a_pod_that_failed_or_was_deleted_by_force_is_replaced_and_the_others_stay() {
    let cluster = shared();
    let before = training(cluster, "replaced");
    cluster.kubelet.pod("replaced-1-1").log("the last words of stage 1");
    cluster.kubelet.pod("replaced-1-1").exit(1, "");
    let job = whole_again(cluster, "replaced", 1);
    assert_eq!(job["status"]["restarts"], json!({"total": 1, "counted": 1, "replaced": 1, "budgetLeft": 2}));
    let failure = &job["status"]["lastFailure"];
    assert_eq!((&failure["stage"], &failure["pod"]), (&json!(1), &json!("replaced-1-1")));
    assert_eq!(job["status"]["attempt"]["number"], 1);
    let after = uids(cluster, "replaced");
    assert!(after[0] == before[0] && after[1] != before[1] && after[2] == before[2], "{before:?} became {after:?}");
    let replaced =
        cluster.pods("replaced").into_iter().find(|pod| pod["metadata"]["name"] == "replaced-1-1-1").unwrap();
    assert_eq!(replaced["metadata"]["labels"]["stagecoach.dev/incarnation"], "1");
    let variables = replaced["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(variables.contains(&json!({"name": env::INCARNATION, "value": "1"})), "{variables:?}");
    until("the event", || cluster.events("replaced").iter().any(|event| event.contains("StageReplaced")).then_some(()));

    let log_tail = |job: &Value| job["status"]["lastFailure"]["logTail"].clone();
    cluster.wait("replaced", "read", |job| log_tail(job) == "the last words of stage 1\n");
    cluster.plane.client().delete("/api/v1/namespaces/default/pods/replaced-2-1?gracePeriodSeconds=0");
    let job = whole_again(cluster, "replaced", 2);
    assert_eq!((&job["status"]["lastFailure"]["stage"], log_tail(&job)), (&json!(2), Value::Null));
    assert_eq!((&job["status"]["restarts"]["counted"], &job["status"]["restarts"]["replaced"]), (&json!(1), &json!(2)));
    assert_eq!(uids(cluster, "replaced")[..2], after[..2]);
}

#[test]
fn what_a_recovery_took_is_reported_by_phases() {
    let cluster = shared();
    cluster.create("timed", json!({"stages": 2, "restart": {"reformTimeoutSeconds": 60}}));
    let stage_0 = cluster.kubelet.pod("timed-0-1");
    let trains = |incarnation, at: u64| {
        let incarnations = vec![Some(0), Some(incarnation)];
        let group = GroupStatus { fence: 4, incarnations, joined_at: at, loaded_at: at + 20, first_step_at: at + 50 };
        let progress = ProgressStatus { step: at % 1000, ..ProgressStatus::default() };
        StageStatus { phase: StagePhase::Training, progress, group: Some(group), ..StageStatus::default() }
    };
    stage_0.set_status(trains(0, 1001));
    cluster.wait("timed", "at step 1", |job| {
        job["status"]["phase"] == "Running" && job["status"]["progress"]["step"] == 1
    });
    cluster.kubelet.pod("timed-1-1").exit(137, "");
    cluster.wait("timed", "replaced", |job| {
        job["status"]["restarts"]["replaced"] == 1 && job["status"]["readyStages"] == 2
    });
    // stage 0 still reports the group that it had before the loss, so the recovery has not ended
    let job = cluster.wait("timed", "Running", |job| job["status"]["phase"] == "Running");
    assert_eq!(job["status"]["lastRecovery"], Value::Null);
    stage_0.set_status(trains(1, 1_000_000_002));
    let job = cluster.wait("timed", "recovered", |job| job["status"]["lastRecovery"].is_object());
    let recovery = &job["status"]["lastRecovery"];
    assert_eq!((&recovery["attempt"], &recovery["replaced"]), (&json!(1), &json!(true)));
    let seconds = |value: &Value| value.as_str().unwrap().parse::<f64>().unwrap();
    let phases = recovery["phases"].as_object().unwrap();
    assert_eq!(phases.len(), 7, "{phases:?}");
    let sum: f64 = phases.values().map(seconds).sum();
    assert!((sum - seconds(&recovery["seconds"])).abs() < 0.01, "{recovery}");
}

#[test]
fn a_stage_that_fails_again_without_progress_restarts_the_group() {
    let cluster = shared();
    training(cluster, "again");
    cluster.kubelet.pod("again-0-1").exit(1, "");
    whole_again(cluster, "again", 1);
    cluster.kubelet.pod("again-0-1-1").exit(1, "");
    let job = cluster.wait_running("again", 2);
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 2, "replaced": 1, "budgetLeft": 1}));
    // a stage may be replaced again after further progress
    let status = StageStatus {
        phase: StagePhase::Training,
        progress: ProgressStatus { step: 9, ..ProgressStatus::default() },
        ..StageStatus::default()
    };
    cluster.kubelet.pod("again-0-2").set_status(status);
    cluster.wait("again", "at step 9", |job| job["status"]["progress"]["step"] == 9);
    cluster.kubelet.pod("again-1-2").exit(137, "");
    let job = whole_again(cluster, "again", 3);
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["restarts"]["replaced"]), (&json!(2), &json!(2)));
}

#[test]
fn a_stage_that_stage_0_has_lost_is_replaced_although_its_pod_seems_to_run() {
    let cluster = shared();
    let before = training(cluster, "silent-node");
    let lost = Some(LostStage { stage: 2, incarnation: 0, has_ended: false });
    let status = |lost| StageStatus { phase: StagePhase::Forming, lost, ..StageStatus::default() };
    cluster.kubelet.pod("silent-node-0-1").set_status(status(lost));
    let job = whole_again(cluster, "silent-node", 1);
    assert_eq!(job["status"]["lastFailure"]["reason"], "NodeLost");
    assert_eq!(job["status"]["restarts"]["counted"], 0);
    let after = uids(cluster, "silent-node");
    assert!(after[..2] == before[..2] && after[2] != before[2], "{before:?} became {after:?}");
}

#[test]
fn a_stage_that_has_ended_is_replaced_before_its_node_says_so() {
    let cluster = shared();
    let before = training(cluster, "ended");
    let lost = Some(LostStage { stage: 1, incarnation: 0, has_ended: true });
    cluster.kubelet.pod("ended-0-1").set_status(StageStatus {
        phase: StagePhase::Forming,
        lost,
        ..StageStatus::default()
    });
    let job = cluster.wait("ended", "replaced", |job| job["status"]["restarts"]["replaced"] == 1);
    let failure = &job["status"]["lastFailure"];
    assert_eq!(
        (&failure["stage"], &failure["reason"], &failure["exitCode"]),
        (&json!(1), &json!("Killed"), &json!(null))
    );
    cluster.kubelet.pod("ended-1-1-1").view();
    // the node reports the end of the stage late
    cluster.kubelet.pod("ended-1-1").oom();
    let job = cluster.wait("ended", "reported", |job| job["status"]["lastFailure"]["exitCode"] == 137);
    assert_eq!(job["status"]["lastFailure"]["reason"], "OutOfMemory");
    let job = whole_again(cluster, "ended", 1);
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    let after = uids(cluster, "ended");
    assert!(after[0] == before[0] && after[1] != before[1] && after[2] == before[2], "{before:?} became {after:?}");
}
