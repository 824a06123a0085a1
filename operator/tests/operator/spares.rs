//! Tests of spares: pods without a stage. A spare replaces a lost stage, and the operator learns of this promotion from
//! the report of the spare.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::{CheckpointStatus, ProgressStatus};
use stagecoach_cluster::{Behaviour, until};

use crate::support::{OperatorProcess, TestCluster, condition_of, has_condition, shared};

/// The time, in seconds, within which a group must promote a spare to a lost stage.
const PROMOTION_SECONDS: i64 = 5;

/// Creates a job of three stages with `spares` spares, and waits until the job trains and the spares stand by.
fn training(cluster: &TestCluster, name: &str, spares: u32) {
    cluster.create(name, json!({"stages": 3, "spares": spares, "restart": {"reformTimeoutSeconds": 60}}));
    until_ready_with_spares(cluster, name, spares);
}

/// Waits until all stages are ready and `spares` spares stand by.
fn until_ready_with_spares(cluster: &TestCluster, name: &str, spares: u32) -> Value {
    let message = format!("all 3 stages are ready; {spares} of {spares} spares stand by");
    cluster.wait(name, "training, with its spares", |job| {
        condition_of(job, "Running").is_some_and(|running| running["message"] == *message)
    })
}

/// Returns the UIDs of the job's pods. The keys are the names of the pods.
fn uids(cluster: &TestCluster, name: &str) -> BTreeMap<String, Value> {
    let pods = cluster.pods(name).into_iter();
    pods.map(|pod| (pod["metadata"]["name"].as_str().unwrap().to_owned(), pod["metadata"]["uid"].clone())).collect()
}

/// Waits until the job has exactly these pods. Returns their UIDs.
fn wait_pods(cluster: &TestCluster, name: &str, pods: &[&str]) -> BTreeMap<String, Value> {
    until(&format!("the pods {pods:?}"), || {
        Some(uids(cluster, name)).filter(|uids| uids.keys().map(String::as_str).eq(pods.iter().copied()))
    })
}

/// Makes a spare report that it has become incarnation `incarnation` of stage `stage`.
fn take_place(cluster: &TestCluster, pod: &str, stage: u32, incarnation: u32) {
    let phase = StagePhase::Forming;
    cluster.kubelet.pod(pod).set_status(StageStatus { stage, incarnation, phase, ..StageStatus::default() });
}

/// Makes the pod `stage_0` report that it is incarnation `incarnation` of stage 0, that it trains, and that it has
/// saved a checkpoint of step `step`.
fn has_saved(cluster: &TestCluster, stage_0: &str, incarnation: u32, step: u64) {
    cluster.kubelet.pod(stage_0).set_status(StageStatus {
        phase: StagePhase::Training,
        incarnation,
        progress: ProgressStatus { step, ..ProgressStatus::default() },
        checkpoint: Some(CheckpointStatus { step, ..CheckpointStatus::default() }),
        ..StageStatus::default()
    });
}

fn wait_saved(cluster: &TestCluster, name: &str, step: u64) -> Value {
    cluster.wait(name, &format!("at checkpoint {step}"), |job| job["status"]["checkpoint"]["step"] == step)
}

fn wait_replaced(cluster: &TestCluster, name: &str, replaced: u64) -> Value {
    cluster.wait(name, "replaced", |job| job["status"]["restarts"]["replaced"] == replaced)
}

#[test]
fn a_spare_takes_the_place_of_a_stage_and_the_next_one_is_made() {
    let cluster = shared();
    training(cluster, "spared", 1);
    let before = wait_pods(cluster, "spared", &["spared-0-1", "spared-1-1", "spared-2-1", "spared-spare-0-1"]);
    let group = cluster.plane.client().list("/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups");
    let group = group.iter().find(|group| group["metadata"]["name"] == "spared-1").unwrap();
    assert_eq!(group["spec"]["schedulingPolicy"]["gang"]["minCount"], 3);
    let spare = cluster.pods("spared").into_iter().find(|pod| pod["metadata"]["name"] == "spared-spare-0-1").unwrap();
    assert_eq!(spare["spec"]["schedulingGroup"], Value::Null);

    // the spare reports its stage before the node reports the exit of the lost stage
    take_place(cluster, "spared-spare-0-1", 2, 1);
    wait_replaced(cluster, "spared", 1);
    cluster.kubelet.pod("spared-2-1").oom();
    let reported = cluster.wait("spared", "reported", |job| job["status"]["lastFailure"]["reason"] == "OutOfMemory");
    let failure = &reported["status"]["lastFailure"];
    assert_eq!((&failure["stage"], &failure["pod"]), (&json!(2), &json!("spared-2-1")));
    let after = wait_pods(cluster, "spared", &["spared-0-1", "spared-1-1", "spared-spare-0-1", "spared-spare-1-1"]);
    for pod in ["spared-0-1", "spared-1-1", "spared-spare-0-1"] {
        assert_eq!(after[pod], before[pod], "{pod}");
    }
    let job = until_ready_with_spares(cluster, "spared", 1);
    let status = &job["status"];
    assert_eq!(status["restarts"], json!({"total": 1, "counted": 1, "replaced": 1, "budgetLeft": 2}));
    assert_eq!((&status["stages"], &status["readyStages"]), (&json!(3), &json!(3)));
    assert_eq!(status["attempt"]["number"], 1);

    // the promoted spare is lost, and another spare replaces it
    has_saved(cluster, "spared-0-1", 0, 5);
    wait_saved(cluster, "spared", 5);
    cluster.kubelet.pod("spared-spare-0-1").exit(1, "");
    take_place(cluster, "spared-spare-1-1", 2, 2);
    let job = wait_replaced(cluster, "spared", 2);
    assert_eq!(job["status"]["lastFailure"]["pod"], "spared-spare-0-1");
    // the operator does not reuse the number of the lost spare, 0, while it remembers the spare's exit
    let pods = ["spared-0-1", "spared-1-1", "spared-spare-1-1", "spared-spare-2-1"];
    let last = wait_pods(cluster, "spared", &pods);
    assert!(pods[..3].iter().all(|pod| last[*pod] == after[*pod]), "{after:?} became {last:?}");
    let events = until("the events", || {
        let events = cluster.events("spared");
        (events.iter().filter(|reason| *reason == "SpareTookPlace").count() == 2).then_some(events)
    });
    assert!(!events.iter().any(|reason| reason == "StageReplaced"), "{events:?}");
}

#[test]
fn the_status_is_read_from_the_spare_that_is_stage_0() {
    let cluster = shared();
    // the former stage 0 still runs and answers, although it has received SIGTERM
    cluster.kubelet.behave(|pod| (pod.name == "headless-0-1").then_some(Behaviour::IgnoreSigterm));
    let grace = json!({"spec": {"terminationGracePeriodSeconds": 300}});
    let spec = json!({"stages": 3, "spares": 1, "restart": {"reformTimeoutSeconds": 60}, "template": grace});
    cluster.create("headless", spec);
    until_ready_with_spares(cluster, "headless", 1);
    has_saved(cluster, "headless-0-1", 0, 3);
    wait_saved(cluster, "headless", 3);
    has_saved(cluster, "headless-spare-0-1", 1, 7);
    wait_saved(cluster, "headless", 7);
    wait_replaced(cluster, "headless", 1);
    cluster.kubelet.pod("headless-0-1").exit(137, "");
    wait_pods(cluster, "headless", &["headless-1-1", "headless-2-1", "headless-spare-0-1", "headless-spare-1-1"]);
    has_saved(cluster, "headless-spare-0-1", 1, 8);
    let job = wait_saved(cluster, "headless", 8);
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["restarts"]["total"]), (&json!(1), &json!(1)));
}

#[test]
fn an_operator_that_was_away_learns_the_stage_of_each_pod() {
    let (cluster, job) = (shared(), "away/job");
    cluster.create_namespace("away");
    let start = || -> OperatorProcess { cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "away")]) };
    let operator = start();
    training(cluster, job, 1);
    let before = uids(cluster, job);
    drop(operator);
    take_place(cluster, "away/job-spare-0-1", 2, 1);
    cluster.kubelet.pod("away/job-2-1").exit(137, "");
    // The operator compares the time of the exit with its clock, so only the clock shows that a group had enough time
    // for a promotion. After this time, the operator replaces the stage unless it first asks the spare.
    let exited_at = until("the exit of the lost stage", || {
        let lost = cluster.pods(job).into_iter().find(|pod| pod["metadata"]["name"] == "job-2-1")?;
        lost["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"].as_str()?.parse::<Timestamp>().ok()
    });
    until("the time for a promotion to pass", || {
        (Timestamp::now().as_second() > exited_at.as_second() + PROMOTION_SECONDS).then_some(())
    });
    let operator = start();
    wait_replaced(cluster, job, 1);
    let pods = ["job-0-1", "job-1-1", "job-spare-0-1", "job-spare-1-1"];
    let after = wait_pods(cluster, job, &pods);
    assert!(pods[..3].iter().all(|pod| after[*pod] == before[*pod]), "{before:?} became {after:?}");
    until_ready_with_spares(cluster, job, 1);
    // the operator also knows each pod's stage if the promotion is already recorded when the operator starts
    drop(operator);
    has_saved(cluster, "away/job-0-1", 0, 5);
    let _operator = start();
    wait_saved(cluster, job, 5);
    let known = until_ready_with_spares(cluster, job, 1);
    assert_eq!(known["status"]["restarts"]["total"], 1, "{:#}", known["status"]);
    assert_eq!(uids(cluster, job), after);
}

/// Whether the condition `Scheduled` reports that the quota has no room for a spare.
fn reports_spare_quota(job: &Value) -> bool {
    let message = condition_of(job, "Scheduled").map(|scheduled| scheduled["message"].to_string());
    message.is_some_and(|message| message.contains("a spare can't be created: QuotaExceeded"))
}

#[test]
fn a_quota_without_room_for_a_spare_does_not_stop_the_job() {
    let (cluster, job) = (shared(), "tight/job");
    cluster.create_namespace("tight");
    cluster.limit_pods("tight", "pods", 3);
    let _operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "tight")]);
    cluster.create(job, json!({"stages": 3, "spares": 1, "restart": {"reformTimeoutSeconds": 60}}));
    let refused = cluster
        .wait(job, "training, and reported", |job| reports_spare_quota(job) && job["status"]["phase"] == "Running");
    assert!(has_condition(&refused, "Scheduled", "True", "AllScheduled"), "{:#}", refused["status"]);
    assert_eq!(refused["status"]["restarts"]["total"], 0);
    has_saved(cluster, "tight/job-0-1", 0, 5);
    wait_saved(cluster, job, 5);
    let events = cluster.events(job);
    assert!(!events.iter().any(|event| event == "NotScheduled"), "{events:?}");
    let more = json!({"spec": {"hard": {"pods": "10"}}});
    cluster.plane.client().patch("/api/v1/namespaces/tight/resourcequotas/pods", &more).unwrap();
    until_ready_with_spares(cluster, job, 1);
    cluster.wait(job, "reported no longer", |job| !reports_spare_quota(job));
}

#[test]
fn a_rejected_spare_is_reported_although_a_repair_is_rejected_too() {
    let (cluster, job) = (shared(), "crowded/job");
    cluster.create_namespace("crowded");
    cluster.limit_pods("crowded", "pods", 3);
    let operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "crowded")]);
    cluster.create(job, json!({"stages": 3, "restart": {"reformTimeoutSeconds": 60}}));
    cluster.wait_phase(job, "Running");
    // without an owner reference, the Service does not belong to the job, so the operator can't restore it
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    cluster.plane.client().patch("/api/v1/namespaces/crowded/services/job", &orphaned).unwrap();
    until("the repair to be rejected", || operator.log().contains("does not belong to this job").then_some(()));
    cluster.edit(job, json!({"spares": 1}));
    let reported = cluster.wait(job, "reported", reports_spare_quota);
    assert_eq!(reported["status"]["phase"], "Running");
}

#[test]
fn spares_follow_the_spec_and_go_when_the_job_is_complete() {
    let cluster = shared();
    training(cluster, "live", 1);
    let before = wait_pods(cluster, "live", &["live-0-1", "live-1-1", "live-2-1", "live-spare-0-1"]);
    cluster.edit("live", json!({"spares": 0}));
    let stages = ["live-0-1", "live-1-1", "live-2-1"];
    wait_pods(cluster, "live", &stages);
    cluster.edit("live", json!({"spares": 2}));
    let job = until_ready_with_spares(cluster, "live", 2);
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["restarts"]["total"]), (&json!(1), &json!(0)));
    for stage in stages {
        cluster.kubelet.pod(stage).exit(0, "");
    }
    cluster.wait_phase("live", "Complete");
    let after = wait_pods(cluster, "live", &stages);
    assert!(stages.iter().all(|stage| after[*stage] == before[*stage]), "they are kept for their logs");
}

#[test]
fn a_suspended_or_scaled_job_has_no_spares_of_the_attempt_before() {
    let cluster = shared();
    training(cluster, "paused", 1);
    cluster.edit("paused", json!({"suspend": true}));
    cluster.wait_phase("paused", "Suspended");
    wait_pods(cluster, "paused", &[]);
    cluster.edit("paused", json!({"suspend": false}));
    until_ready_with_spares(cluster, "paused", 1);
    wait_pods(cluster, "paused", &["paused-0-2", "paused-1-2", "paused-2-2", "paused-spare-0-2"]);
    cluster.edit("paused", json!({"stages": 2}));
    wait_pods(cluster, "paused", &["paused-0-3", "paused-1-3", "paused-spare-0-3"]);
}
