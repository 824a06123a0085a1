//! Why attempts fail, what is told of it, and what follows.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::OnceLock;

use serde_json::{Value, json};
use stagecoach_api::contract::{FailureKind, StagePhase, StageStatus, TerminationMessage};
use stagecoach_api::job::{CheckpointStatus, Progress};
use stagecoach_cluster::until;
use support::{Scene, condition_of, is};

fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(Scene::start)
}

fn message(kind: FailureKind, stage: u32, text: &str) -> String {
    TerminationMessage::new(kind, stage, text).to_json()
}

fn failure(job: &Value) -> &Value {
    &job["status"]["lastFailure"]
}

#[test]
fn the_root_cause_is_told_and_not_those_it_took_down() {
    let scene = scene();
    scene.create("culprit", json!({"stages": 3}));
    scene.wait_running("culprit", 1);
    let pod = |stage: u32| scene.kubelet.pod(&format!("culprit-{stage}-1"));
    pod(1).log("the last words of stage 1");
    pod(0).exit(75, &message(FailureKind::PeerLost, 0, "lost stage 1"));
    pod(2).exit(75, &message(FailureKind::PeerLost, 2, "lost stage 1"));
    pod(1).exit(1, &message(FailureKind::Error, 1, "ran into a wall"));
    let job = scene.wait_running("culprit", 2);
    let told = failure(&job);
    assert_eq!((&told["stage"], &told["pod"], &told["exitCode"]), (&json!(1), &json!("culprit-1-1"), &json!(1)));
    assert_eq!(told["message"], "ran into a wall");
    assert!(told["logTail"].as_str().unwrap_or_default().contains("the last words of stage 1"), "{told:#}");
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    assert!(scene.pods("culprit").iter().all(|pod| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2"));
    assert!(scene.events("culprit").contains(&"AttemptFailed".to_owned()));
}

#[test]
fn a_lack_of_memory_counts_and_an_eviction_does_not() {
    let scene = scene();
    scene.create("memory", json!({}));
    scene.wait_running("memory", 1);
    scene.kubelet.pod("memory-1-1").oom();
    let job = scene.wait_running("memory", 2);
    assert_eq!(failure(&job)["exitCode"], 137);
    assert!(failure(&job)["message"].as_str().unwrap().contains("memory limit"), "{}", failure(&job));
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    scene.kubelet.pod("memory-0-2").evict();
    let job = scene.wait_running("memory", 3);
    assert_eq!(failure(&job)["reason"], "Evicted");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 1, "budgetLeft": 2}));
}

#[test]
fn a_deleted_pod_makes_the_group_start_again() {
    let scene = scene();
    scene.create("deleted", json!({}));
    scene.wait_running("deleted", 1);
    scene.plane.client().delete("/api/v1/namespaces/default/pods/deleted-1-1");
    // the trainers agree on a boundary, save, and leave
    scene.kubelet.pod("deleted-0-1").exit(143, "");
    let job = scene.wait_running("deleted", 2);
    assert_eq!(failure(&job)["reason"], "Drained");
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn a_job_that_can_never_work_is_given_up_at_once() {
    let scene = scene();
    // lives on long enough for all to be told
    scene.create("invalid", json!({"ttlSecondsAfterFinished": 3600}));
    scene.wait_running("invalid", 1);
    scene.kubelet.pod("invalid-0-1").exit(78, &message(FailureKind::InvalidConfig, 0, "no such corpus"));
    let job = scene.wait_phase("invalid", "Failed");
    let failed = condition_of(&job, "Failed").unwrap();
    assert_eq!(failed["reason"], "InvalidConfig");
    assert!(failed["message"].as_str().unwrap().contains("no such corpus"), "{failed}");
    assert_eq!(job["status"]["attempt"]["number"], 1);
    // that the other stage is gone is told a moment later
    scene.wait("invalid", "without stages", |job| job["status"]["stages"] == 0 && job["status"]["readyStages"] == 0);
}

#[test]
fn a_rule_on_exit_codes_is_obeyed() {
    let scene = scene();
    scene.create("ruled", json!({"restart": {"exitCodes": [{"codes": [3], "action": "Fail"}, {"codes": [4], "action": "RestartUncounted"}]}}));
    scene.wait_running("ruled", 1);
    scene.kubelet.pod("ruled-0-1").exit(4, "");
    let job = scene.wait_running("ruled", 2);
    assert_eq!(job["status"]["restarts"], json!({"total": 1, "counted": 0, "budgetLeft": 3}));
    scene.kubelet.pod("ruled-0-2").exit(3, "");
    let job = scene.wait_phase("ruled", "Failed");
    assert!(is(&job, "Failed", "True", "ExitCodeRule"));
}

#[test]
fn the_budget_is_kept() {
    let scene = scene();
    scene.create("spent", json!({"restart": {"maxRestarts": 2}}));
    for attempt in 1..=3 {
        scene.wait_running("spent", attempt);
        scene.kubelet.pod(&format!("spent-1-{attempt}")).exit(1, "");
    }
    let job = scene.wait_phase("spent", "Failed");
    assert!(is(&job, "Failed", "True", "BudgetExhausted"));
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 2, "budgetLeft": 0}));
    // the end is the end: its last pods are kept for their logs or gone, and no new ones come
    let newest = |pod: &Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "3";
    assert!(scene.pods("spent").iter().all(newest));
}

#[test]
fn a_group_that_never_forms_is_started_again() {
    let scene = scene();
    let never = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "never-ready"}}});
    scene.create("stuck", json!({"template": never, "restart": {"startupTimeoutSeconds": 10, "maxRestarts": 0}}));
    let job = scene.wait_phase("stuck", "Failed");
    assert_eq!(failure(&job)["reason"], "StartupTimeout");
}

#[test]
fn an_image_that_cannot_be_pulled_is_shown_at_once() {
    let scene = scene();
    let error = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "image-pull-error"}}});
    scene.create("unpulled", json!({"template": error}));
    let pull = |job: &Value| {
        let scheduled = condition_of(job, "Scheduled");
        scheduled
            .is_some_and(|told| ["ErrImagePull", "ImagePullBackOff"].iter().any(|reason| told["reason"] == *reason))
    };
    let job = scene.wait("unpulled", "without its image", pull);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn a_pod_that_finds_no_place_is_shown_at_once() {
    let scene = scene();
    scene.create(
        "placeless",
        json!({"scheduling": {"gang": "None"}, "template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}),
    );
    let job = scene.wait("placeless", "unschedulable", |job| is(job, "Scheduled", "False", "Unschedulable"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("nodes are available"));
    scene.edit("placeless", json!({"template": {"spec": {"nodeSelector": null}}}));
    scene.wait_running("placeless", 2);
}

#[test]
fn a_dead_node_delays_a_restart_by_its_timeout_at_most() {
    // a cluster of its own: others' pods must not be on the node that dies
    let scene = Scene::start();
    // on two nodes, one of which dies
    let spread = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"stagecoach.dev/job": "orphaned"}}}]}}}});
    scene.create("orphaned", json!({"template": spread, "restart": {"terminationTimeoutSeconds": 5}}));
    scene.wait_running("orphaned", 1);
    let pods = scene.pods("orphaned");
    let node = pods[1]["spec"]["nodeName"].as_str().unwrap().to_owned();
    scene.kubelet.stop_node(&node);
    scene.kubelet.pod("orphaned-0-1").exit(75, &message(FailureKind::PeerLost, 0, "lost stage 1"));
    let job = scene.wait("orphaned", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(failure(&job)["reason"], "NodeLost");
    // the lost pod can't go, and the new ones come all the same
    until("the pods of attempt 2", 60, || {
        let new = |pod: &&Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2";
        (scene.pods("orphaned").iter().filter(new).count() == 2).then_some(())
    });
    let stuck = scene.plane.get("/api/v1/namespaces/default/pods/orphaned-1-1").unwrap();
    assert!(stuck["metadata"]["deletionTimestamp"].is_string());
    scene.kubelet.resume_node(&node);
    let job = scene.wait_running("orphaned", 2);
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn the_end_of_a_pod_that_is_gone_is_remembered() {
    let scene = scene();
    scene.create("alone", json!({"stages": 1}));
    scene.wait_running("alone", 1);
    scene.plane.client().delete("/api/v1/namespaces/default/pods/alone-0-1");
    let job = scene.wait_running("alone", 2);
    // a list shows nothing of it any more: only the watch has seen how it ended
    assert_eq!((&failure(&job)["reason"], &failure(&job)["exitCode"]), (&json!("Drained"), &json!(143)));
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn a_group_that_no_longer_gets_on_is_started_again() {
    let scene = scene();
    scene.create("stalled", json!({"restart": {"stallTimeoutSeconds": 10}}));
    scene.wait_running("stalled", 1);
    let training = StageStatus {
        phase: StagePhase::Training,
        progress: Progress { step: 3, ..Progress::default() },
        ..StageStatus::default()
    };
    scene.kubelet.pod("stalled-0-1").set_status(training);
    let job = scene.wait("stalled", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(failure(&job)["reason"], "Stalled");
    assert_eq!(job["status"]["progress"]["step"], 3);
}

#[test]
fn a_stage_that_does_not_answer_is_no_failure() {
    let scene = scene();
    scene.create("silent", json!({"restart": {"stallTimeoutSeconds": 10}}));
    scene.wait_running("silent", 1);
    let training = StageStatus { phase: StagePhase::Training, ..StageStatus::default() };
    let stage_0 = scene.kubelet.pod("silent-0-1");
    stage_0.set_status(StageStatus { progress: Progress { step: 1, ..Progress::default() }, ..training.clone() });
    scene.wait("silent", "heard", |job| is(job, "Progressing", "True", "Training"));
    // another pod's answer is none
    stage_0.set_status(StageStatus { pod_uid: "another".into(), ..training });
    scene.wait("silent", "unreachable", |job| is(job, "Progressing", "Unknown", "StatusUnreachable"));
    assert_eq!(scene.job("silent").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn saves_that_fail_are_told_and_restart_nothing() {
    let scene = scene();
    scene.create("unsaved", json!({}));
    scene.wait_running("unsaved", 1);
    let training = |step| StageStatus {
        phase: StagePhase::Training,
        progress: Progress { step, ..Progress::default() },
        ..StageStatus::default()
    };
    let stage_0 = scene.kubelet.pod("unsaved-0-1");
    let message = Some("the checkpoint of step 4 failed: no space left on device".to_owned());
    stage_0.set_status(StageStatus { save_failure: message, ..training(5) });
    let job = scene.wait("unsaved", "unhealthy", |job| is(job, "CheckpointsHealthy", "False", "SavingFails"));
    let told = condition_of(&job, "CheckpointsHealthy").unwrap();
    assert_eq!(told["message"], "the checkpoint of step 4 failed: no space left on device");
    let committed = CheckpointStatus { step: 8, ..CheckpointStatus::default() };
    stage_0.set_status(StageStatus { checkpoint: Some(committed), ..training(9) });
    let job = scene.wait("unsaved", "healthy again", |job| is(job, "CheckpointsHealthy", "True", "Committed"));
    assert_eq!(job["status"]["attempt"]["number"], 1);
    until("both events", 30, || {
        let events = scene.events("unsaved");
        ["SavingFails", "SavingWorksAgain"].iter().all(|reason| events.iter().any(|e| e == reason)).then_some(())
    });
}

#[test]
fn pods_are_restricted_and_what_admission_refuses_is_shown() {
    let scene = scene();
    scene.plane.create_namespace("strict");
    support::volume(&scene.plane, "strict");
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    scene.plane.client().patch("/api/v1/namespaces/strict", &label).unwrap();
    scene.create("strict/good", json!({}));
    scene.wait_running("strict/good", 1);
    let root = json!({"template": {"spec": {"securityContext": {"runAsNonRoot": false, "runAsUser": 0}}}});
    scene.create("strict/bad", root);
    let job = scene.wait("strict/bad", "refused", |job| is(job, "Scheduled", "False", "Forbidden"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("violates PodSecurity"));
    assert!(scene.pods("strict/bad").is_empty());
}

#[test]
fn a_record_that_cannot_be_read_stops_this_job_and_no_other() {
    let scene = scene();
    scene.create("garbled", json!({"suspend": true}));
    scene.wait_phase("garbled", "Suspended");
    let garbage = json!({"status": {"record": {"doing": 7}}});
    scene.plane.client().patch(&format!("{}/status", support::path("garbled")), &garbage).unwrap();
    scene.edit("garbled", json!({"suspend": false}));
    let job = scene.wait("garbled", "refused", |job| is(job, "Accepted", "False", "UnknownRecord"));
    assert!(condition_of(&job, "Accepted").unwrap()["message"].to_string().contains("status.record"));
    assert!(scene.pods("garbled").is_empty());
    scene.create("after-it", json!({}));
    scene.wait_running("after-it", 1);
}
