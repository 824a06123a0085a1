//! Tests of jobs with several replicas of the pipeline: the pods of the replicas, and the job's status.

use serde_json::{Value, json};
use stagecoach_api::contract::{GroupStatus, LostStage, StagePhase, StageStatus};
use stagecoach_api::job::ProgressStatus;
use stagecoach_cluster::until;

use crate::support::{has_condition, path, shared};

/// For a budget with a number, the disruption controller counts the pods itself. For a budget with a percentage or
/// `maxUnavailable`, it uses `spec.replicas` of the scale subresource, which counts only the stages of one replica.
#[test]
fn a_disruption_budget_with_a_number_counts_all_replicas() {
    let cluster = shared();
    cluster.create("budgeted", json!({"dataParallel": 2, "training": {"gradientBlocks": 2}}));
    cluster.wait_running("budgeted", 1);
    let scale = cluster.plane.get(&format!("{}/scale", path("budgeted"))).unwrap();
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&json!(2), &json!(2)),
        "spec and status of the scale must both count the stages of one replica"
    );
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let selector = json!({"matchLabels": {"stagecoach.dev/job": "budgeted"}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budgeted"},
        "spec": {"minAvailable": 4, "selector": selector}});
    cluster.plane.client().create(budgets, &budget).unwrap();
    let status = until("the budget to be counted", || {
        let budget = cluster.plane.get(&format!("{budgets}/budgeted"))?;
        (budget["status"]["currentHealthy"] == 4).then(|| budget["status"].clone())
    });
    assert_eq!((&status["expectedPods"], &status["disruptionsAllowed"]), (&json!(4), &json!(0)), "{status:#}");
}

#[test]
fn replicas_have_pods_of_their_own_and_one_that_is_lost_is_replaced() {
    let cluster = shared();
    let spec = json!({"dataParallel": 2, "training": {"gradientBlocks": 2}, "restart": {"reformTimeoutSeconds": 60, "minDataParallel": 2}});
    cluster.create("replicas", spec);
    let job = cluster.wait_running("replicas", 1);
    let status = &job["status"];
    assert_eq!((&status["stages"], &status["readyStages"]), (&json!(4), &json!(4)));
    assert_eq!((&status["attempt"]["stages"], &status["attempt"]["dataParallel"]), (&json!(2), &json!(2)));
    assert_eq!(cluster.pod_names("replicas"), ["replicas-0-0-1", "replicas-0-1-1", "replicas-1-0-1", "replicas-1-1-1"]);
    let service = cluster.plane.get("/api/v1/namespaces/default/services/replicas").unwrap();
    let selector = &service["spec"]["selector"];
    assert_eq!((&selector["stagecoach.dev/stage"], &selector["stagecoach.dev/replica"]), (&json!("0"), &json!("0")));
    let group = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/replicas-1";
    let gang = cluster.plane.get(group).unwrap();
    assert_eq!(gang["spec"]["schedulingPolicy"]["gang"]["minCount"], 4, "{gang:#}");

    cluster.kubelet.pod("replicas-1-0-1").exit(1, "");
    let job = cluster.wait("replicas", "whole again", |job| {
        job["status"]["restarts"]["replaced"] == 1 && job["status"]["readyStages"] == 4
    });
    let failure = &job["status"]["lastFailure"];
    assert_eq!(
        (&failure["stage"], &failure["replica"], &failure["pod"]),
        (&json!(0), &json!(1), &json!("replicas-1-0-1"))
    );
    until("the removal of what was replaced", || {
        (cluster.pod_names("replicas") == ["replicas-0-0-1", "replicas-0-1-1", "replicas-1-0-1-1", "replicas-1-1-1"])
            .then_some(())
    });
    until("the events", || {
        let printed = |words: &str| cluster.event_notes("replicas").iter().any(|note| note.contains(words));
        (printed("attempt 1 with 2 replicas of 2 stages")
            && printed("attempt 1: stage 0 of replica 1: ")
            && printed("stage 0 of replica 1 starts again as replicas-1-0-1-1"))
        .then_some(())
    });
}

/// The user changes one stage with two replicas to two stages with one replica. The number of pods stays the same, but
/// the pods run other stages.
#[test]
fn replicas_that_become_stages_are_another_attempt() {
    let cluster = shared();
    cluster.create("reshaped", json!({"stages": 1, "dataParallel": 2, "training": {"gradientBlocks": 2}}));
    cluster.wait_running("reshaped", 1);
    assert_eq!(cluster.pod_names("reshaped"), ["reshaped-0-0-1", "reshaped-1-0-1"]);
    cluster.edit("reshaped", json!({"stages": 2, "dataParallel": 1}));
    let job = cluster.wait_running("reshaped", 2);
    assert_eq!(cluster.pod_names("reshaped"), ["reshaped-0-2", "reshaped-1-2"]);
    assert_eq!((&job["status"]["attempt"]["dataParallel"], &job["status"]["readyStages"]), (&Value::Null, &json!(2)));
    assert_eq!(job["status"]["restarts"]["total"], 0);
    let service = cluster.plane.get("/api/v1/namespaces/default/services/reshaped").unwrap();
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/replica"], Value::Null);
}

#[test]
fn a_job_runs_without_a_replica_that_it_may_lack_and_says_so() {
    let cluster = shared();
    cluster.create(
        "bereft",
        json!({"dataParallel": 2, "training": {"gradientBlocks": 2}, "restart": {"reformTimeoutSeconds": 60}}),
    );
    let replicas = |training: u32| move |job: &Value| job["status"]["trainingReplicas"] == training;
    cluster.wait("bereft", "both replicas", replicas(2));
    let stage = cluster.kubelet.pod("bereft-1-1-1");
    stage.set_ready(false);
    let job = cluster.wait("bereft", "one replica", replicas(1));
    assert_eq!((&job["status"]["phase"], &job["status"]["readyStages"]), (&json!("Running"), &json!(3)));
    assert!(has_condition(&job, "Running", "True", "ReplicasMissing"), "{job:#}");
    assert!(has_condition(&job, "Ready", "True", "Running"), "{job:#}");
    until("the event", || {
        let notes = cluster.event_notes("bereft");
        notes
            .iter()
            .any(|note| note.contains("training with 1 of 2 replicas until the missing replicas return"))
            .then_some(())
    });
    stage.set_ready(true);
    let job = cluster.wait("bereft", "both replicas again", replicas(2));
    assert!(has_condition(&job, "Running", "True", "AllReady"), "{job:#}");
    // stage 0 of one replica and stage 1 of the other replica together form one replica
    cluster.kubelet.pod("bereft-0-1-1").set_ready(false);
    cluster.wait("bereft", "one replica", replicas(1));
    cluster.kubelet.pod("bereft-1-0-1").set_ready(false);
    cluster.wait("bereft", "one replica", |job| job["status"]["readyStages"] == 2 && replicas(1)(job));
    stage.set_ready(false);
    let job = cluster.wait("bereft", "no replica", replicas(0));
    assert_eq!(job["status"]["phase"], "Starting");
}

/// The operator uses the report with the highest `leader_fence`. A stage acquires this number when it becomes the
/// leader, and each later leader gets a higher number. The operator ignores the report of a former leader whose pod
/// still runs.
#[test]
fn the_stage_that_took_the_newest_fence_is_believed() {
    let cluster = shared();
    cluster.create(
        "led",
        json!({"dataParallel": 2, "training": {"gradientBlocks": 2}, "restart": {"reformTimeoutSeconds": 60}}),
    );
    cluster.wait_running("led", 1);
    let leads = |pod: &str, leader_fence, step| {
        let progress = ProgressStatus { step, ..ProgressStatus::default() };
        let status = StageStatus { phase: StagePhase::Training, leader_fence, progress, ..StageStatus::default() };
        cluster.kubelet.pod(pod).set_status(status);
    };
    let step = |step: u64| move |job: &Value| job["status"]["progress"]["step"] == step;
    leads("led-0-0-1", 3, 20);
    cluster.wait("led", "at step 20", step(20));
    leads("led-1-0-1", 4, 21);
    cluster.wait("led", "at step 21", step(21));
    leads("led-0-0-1", 3, 99);
    leads("led-1-0-1", 4, 22);
    cluster.wait("led", "at step 22", step(22));
    // the leader reports a group of only two stages, which form one replica, although all pods are ready
    let group = GroupStatus { incarnations: vec![None, Some(0), Some(0), None], ..GroupStatus::default() };
    let status =
        StageStatus { phase: StagePhase::Training, leader_fence: 4, group: Some(group), ..StageStatus::default() };
    cluster.kubelet.pod("led-1-0-1").set_status(status);
    cluster.wait("led", "one replica", |job| job["status"]["trainingReplicas"] == 1);
    // the leader has lost a stage
    let lost = Some(LostStage { stage: 1, incarnation: 0, has_ended: true });
    let status = StageStatus { phase: StagePhase::Forming, leader_fence: 4, lost, ..StageStatus::default() };
    cluster.kubelet.pod("led-1-0-1").set_status(status);
    let job = cluster.wait("led", "replaced", |job| job["status"]["restarts"]["replaced"] == 1);
    let failure = &job["status"]["lastFailure"];
    assert_eq!((&failure["stage"], &failure["replica"]), (&json!(1), &json!(0)), "{job:#}");
}
