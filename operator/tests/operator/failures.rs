//! Why attempts fail, what the status reports, and what follows.

use crate::support::{condition_of, exclusive, has_condition, shared};
use serde_json::{Value, json};
use stagecoach_api::contract::{FailureKind, StagePhase, StageStatus, TerminationMessage};
use stagecoach_api::job::{CheckpointStatus, ProgressStatus};
use stagecoach_cluster::until;

fn message(kind: FailureKind, stage: u32, text: &str) -> String {
    TerminationMessage::new(kind, stage, text).to_json()
}

fn failure(job: &Value) -> &Value {
    &job["status"]["lastFailure"]
}

#[test]
fn the_node_of_a_stage_that_computed_wrong_is_kept_out_of_the_next_attempts() {
    let cluster = shared();
    cluster.create("miscalculated", json!({"training": {"audit": {"everySteps": 10, "onDifference": "Restart"}}}));
    cluster.wait_running("miscalculated", 1);
    let nodes = |attempt: &str| -> Vec<String> {
        let of_attempt = |pod: &Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == attempt;
        let pods = cluster.pods("miscalculated").into_iter().filter(of_attempt);
        pods.map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
    };
    let pods = cluster.pods("miscalculated");
    let suspect = pods.iter().find(|pod| pod["metadata"]["name"] == "miscalculated-1-1").unwrap();
    let node = suspect["spec"]["nodeName"].as_str().unwrap().to_owned();
    let pod = |name: &str| cluster.kubelet.pod(name);
    pod("miscalculated-1-1").exit(1, &message(FailureKind::WrongResult, 1, "audit of step 20: stage 1 computed wrong"));
    let job = cluster.wait_running("miscalculated", 2);
    assert_eq!(failure(&job)["reason"], "WrongResult");
    let record: Value = serde_json::from_str(job["status"]["record"].as_str().unwrap()).unwrap();
    assert_eq!(record["excludedNodes"], json!([node]));
    assert!(has_condition(&job, "AuditsEqual", "False", "StageDiffers"), "{:#}", job["status"]["conditions"]);
    let told = condition_of(&job, "AuditsEqual").unwrap()["message"].clone();
    assert_eq!(told, format!("audit of step 20: stage 1 computed wrong; pod miscalculated-1-1 is on node {node}"));
    assert!(!nodes("2").is_empty() && !nodes("2").contains(&node), "{:?}", nodes("2"));
    // and of the one after, whatever ends this one
    pod("miscalculated-0-2").exit(1, "");
    cluster.wait_running("miscalculated", 3);
    assert!(!nodes("3").is_empty() && !nodes("3").contains(&node), "{:?}", nodes("3"));
}

#[test]
fn the_root_cause_is_reported_and_no_secondary_failure() {
    let cluster = shared();
    cluster.create("culprit", json!({"stages": 3}));
    cluster.wait_running("culprit", 1);
    let pod = |stage: u32| cluster.kubelet.pod(&format!("culprit-{stage}-1"));
    pod(1).log(&"many words ".repeat(500));
    pod(1).log("the last words of stage 1");
    pod(0).exit(75, &message(FailureKind::PeerLost, 0, "lost stage 1"));
    pod(2).exit(75, &message(FailureKind::PeerLost, 2, "lost stage 1"));
    pod(1).exit(1, &message(FailureKind::Error, 1, "ran into a wall"));
    let job = cluster.wait_running("culprit", 2);
    let failure = failure(&job);
    assert_eq!(
        (&failure["stage"], &failure["pod"], &failure["exitCode"]),
        (&json!(1), &json!("culprit-1-1"), &json!(1))
    );
    assert_eq!(failure["message"], "ran into a wall");
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    assert!(cluster.pods("culprit").iter().all(|pod| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2"));
    // it is read in the background
    let read = cluster.wait("culprit", "read", |job| job["status"]["lastFailure"]["logTail"].is_string());
    let tail = read["status"]["lastFailure"]["logTail"].as_str().unwrap();
    assert!(tail.ends_with("the last words of stage 1\n") && tail.len() <= 2048, "{tail}");
    // each has its own words
    until("the events of both attempts", 30, || {
        let events = cluster.plane.client().list("/apis/events.k8s.io/v1/namespaces/default/events");
        let told =
            |note: &str| events.iter().any(|event| event["regarding"]["name"] == "culprit" && event["note"] == note);
        let failed = "attempt 1: stage 1: Error: ran into a wall";
        ["attempt 1 with 3 stages", failed, "attempt 2 with 3 stages"].into_iter().all(told).then_some(())
    });
}

#[test]
fn an_oom_kill_counts_and_an_eviction_does_not() {
    let cluster = shared();
    cluster.create("memory", json!({}));
    cluster.wait_running("memory", 1);
    cluster.kubelet.pod("memory-1-1").oom();
    let job = cluster.wait_running("memory", 2);
    assert_eq!(failure(&job)["exitCode"], 137);
    assert!(failure(&job)["message"].as_str().unwrap().contains("memory limit"), "{}", failure(&job));
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    cluster.kubelet.pod("memory-0-2").evict();
    let job = cluster.wait_running("memory", 3);
    assert_eq!(failure(&job)["reason"], "Evicted");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 1, "replaced": 0, "budgetLeft": 2}));
}

#[test]
fn a_deleted_pod_restarts_the_group() {
    let cluster = shared();
    cluster.create("deleted", json!({}));
    cluster.wait_running("deleted", 1);
    cluster.plane.client().delete("/api/v1/namespaces/default/pods/deleted-1-1");
    // the trainers agree on a boundary, save, and exit
    cluster.kubelet.pod("deleted-0-1").exit(143, "");
    let job = cluster.wait_running("deleted", 2);
    assert_eq!(failure(&job)["reason"], "Drained");
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn an_invalid_job_fails_at_once() {
    let cluster = shared();
    // kept long enough for its final status
    cluster.create("invalid", json!({"ttlSecondsAfterFinished": 3600}));
    cluster.wait_running("invalid", 1);
    cluster.kubelet.pod("invalid-0-1").exit(78, &message(FailureKind::InvalidConfig, 0, "no such corpus"));
    let job = cluster.wait_phase("invalid", "Failed");
    let failed = condition_of(&job, "Failed").unwrap();
    assert_eq!(failed["reason"], "InvalidConfig");
    assert!(failed["message"].as_str().unwrap().contains("no such corpus"), "{failed}");
    assert_eq!(job["status"]["attempt"]["number"], 1);
    // the deletion of the other stage is reported a moment later
    cluster.wait("invalid", "without stages", |job| job["status"]["stages"] == 0 && job["status"]["readyStages"] == 0);
}

#[test]
fn a_failed_init_container_is_told_and_not_the_sidecar_that_ends_for_it() {
    let cluster = shared();
    let init = json!([
        {"name": "logs", "image": "logs:1", "restartPolicy": "Always"},
        {"name": "fetch", "image": "fetch:1", "command": ["exit", "78", "0", "no such bucket"]},
    ]);
    let restart = json!({"maxRestarts": 1});
    cluster.create("unfetched", json!({"restart": restart, "template": {"spec": {"initContainers": init}}}));
    let job = cluster.wait_phase("unfetched", "Failed");
    // its code has no meaning in the contract of stages
    assert!(has_condition(&job, "Failed", "True", "BudgetExhausted"), "{:#}", job["status"]);
    let failure = failure(&job);
    assert_eq!((&failure["reason"], &failure["exitCode"]), (&json!("Error"), &json!(1)));
    assert_eq!(failure["message"], "init container fetch exited with code 78: no such bucket");
}

#[test]
fn exit_code_rules_apply() {
    let cluster = shared();
    cluster.create("ruled", json!({"restart": {"exitCodes": [{"codes": [3], "action": "Fail"}, {"codes": [4], "action": "RestartUncounted"}]}}));
    cluster.wait_running("ruled", 1);
    cluster.kubelet.pod("ruled-0-1").exit(4, "");
    let job = cluster.wait_running("ruled", 2);
    assert_eq!(job["status"]["restarts"], json!({"total": 1, "counted": 0, "replaced": 0, "budgetLeft": 3}));
    cluster.kubelet.pod("ruled-0-2").exit(3, "");
    let job = cluster.wait_phase("ruled", "Failed");
    assert!(has_condition(&job, "Failed", "True", "PodFailurePolicy"));
}

#[test]
fn a_pod_failure_policy_decides_by_exit_code_condition_and_reason() {
    let cluster = shared();
    let rules = json!([
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [4]}},
        {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "FailJob", "onReasons": ["OutOfMemory"]},
    ]);
    cluster.create("policed", json!({"restart": {"podFailurePolicy": {"rules": rules}}}));
    cluster.wait_running("policed", 1);
    cluster.kubelet.pod("policed-0-1").exit(4, "");
    let job = cluster.wait_running("policed", 2);
    assert_eq!(job["status"]["restarts"], json!({"total": 1, "counted": 0, "replaced": 0, "budgetLeft": 3}));
    cluster.kubelet.pod("policed-1-2").evict();
    let job = cluster.wait_running("policed", 3);
    assert_eq!(failure(&job)["reason"], "Evicted");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 1, "replaced": 0, "budgetLeft": 2}));
    cluster.kubelet.pod("policed-0-3").oom();
    let job = cluster.wait_phase("policed", "Failed");
    assert!(has_condition(&job, "Failed", "True", "PodFailurePolicy"));
    assert_eq!(failure(&job)["reason"], "OutOfMemory");
}

#[test]
fn the_restart_budget_is_respected() {
    let cluster = shared();
    cluster.create("spent", json!({"restart": {"maxRestarts": 2}}));
    for attempt in 1..=3 {
        cluster.wait_running("spent", attempt);
        cluster.kubelet.pod(&format!("spent-1-{attempt}")).exit(1, "");
    }
    let job = cluster.wait_phase("spent", "Failed");
    assert!(has_condition(&job, "Failed", "True", "BudgetExhausted"));
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 2, "replaced": 0, "budgetLeft": 0}));
    // the last attempt's pods are kept for their logs or deleted, and no new ones are created
    let newest = |pod: &Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "3";
    assert!(cluster.pods("spent").iter().all(newest));
}

#[test]
fn the_first_restart_is_immediate_and_the_second_is_not() {
    let cluster = shared();
    cluster.create("prompt", json!({"restart": {"backoff": {"initialSeconds": 3600, "maxSeconds": 3600}}}));
    cluster.wait_running("prompt", 1);
    cluster.kubelet.pod("prompt-1-1").exit(1, "");
    cluster.wait_running("prompt", 2);
    cluster.kubelet.pod("prompt-1-2").exit(1, "");
    cluster.wait_phase("prompt", "Restarting");
    until("its pods to go", 60, || cluster.pods("prompt").is_empty().then_some(()));
    assert_eq!(cluster.job("prompt").unwrap()["status"]["attempt"]["number"], 3);
}

#[test]
fn a_group_that_never_becomes_ready_times_out() {
    let cluster = shared();
    let never = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "never-ready"}}});
    cluster.create("stuck", json!({"template": never, "restart": {"startupTimeoutSeconds": 10, "maxRestarts": 0}}));
    let job = cluster.wait_phase("stuck", "Failed");
    assert_eq!(failure(&job)["reason"], "StartupTimeout");
}

#[test]
fn an_image_pull_error_is_reported_at_once() {
    let cluster = shared();
    let error = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "image-pull-error"}}});
    cluster.create("unpulled", json!({"template": error}));
    let pull = |job: &Value| {
        let scheduled = condition_of(job, "Scheduled");
        scheduled.is_some_and(|condition| {
            ["ErrImagePull", "ImagePullBackOff"].iter().any(|reason| condition["reason"] == *reason)
        })
    };
    let job = cluster.wait("unpulled", "without its image", pull);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn an_unschedulable_pod_is_reported_at_once() {
    let cluster = shared();
    cluster.create(
        "placeless",
        json!({"scheduling": {"gang": "None"}, "template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}),
    );
    let job =
        cluster.wait("placeless", "unschedulable", |job| has_condition(job, "Scheduled", "False", "Unschedulable"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("nodes are available"));
    cluster.edit("placeless", json!({"template": {"spec": {"nodeSelector": null}}}));
    cluster.wait_running("placeless", 2);
}

#[test]
fn pods_that_a_queue_holds_back_wait_for_it_and_keep_their_place() {
    let cluster = shared();
    let wants = |spec: Value| json!({"scheduling": {"gang": "None", "timeoutSeconds": 1}, "template": {"spec": spec}});
    cluster.create("held-back", wants(json!({"schedulingGates": [{"name": "example.com/queue"}]})));
    cluster.wait("held-back", "held back", |job| has_condition(job, "Scheduled", "False", "SchedulingGated"));
    let uids =
        || -> Vec<Value> { cluster.pods("held-back").iter().map(|pod| pod["metadata"]["uid"].clone()).collect() };
    let held = uids();
    // a job that came later, and that no queue holds back, has used up its time meanwhile
    cluster.create("roomless", wants(json!({"nodeSelector": {"nowhere": "true"}})));
    let timed_out = |job: &Value| job["status"]["lastFailure"]["reason"] == "Unschedulable";
    cluster.wait("roomless", "timed out", |job| timed_out(job) && job["status"]["attempt"]["number"] == 2);
    assert_eq!((uids(), cluster.job("held-back").unwrap()["status"]["restarts"]["total"].clone()), (held, json!(0)));
    // a busy machine has time to place them
    cluster.edit("held-back", json!({"scheduling": {"timeoutSeconds": 600}}));
    let generation = cluster.job("held-back").unwrap()["metadata"]["generation"].clone();
    cluster.wait("held-back", "heard", |job| job["status"]["observedGeneration"] == generation);
    for pod in cluster.pods("held-back") {
        let path = format!("/api/v1/namespaces/default/pods/{}", pod["metadata"]["name"].as_str().unwrap());
        cluster.plane.client().patch(&path, &json!({"spec": {"schedulingGates": []}})).unwrap();
    }
    assert_eq!(cluster.wait_running("held-back", 1)["status"]["restarts"]["total"], 0);
}

#[test]
fn a_dead_node_delays_a_restart_by_its_timeout_at_most() {
    // no other job's pods must be on the node that is lost
    let cluster = exclusive();
    // on two nodes, one of which is lost
    let spread = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"stagecoach.dev/job": "orphaned"}}}]}}}});
    cluster.create("orphaned", json!({"template": spread, "restart": {"terminationTimeoutSeconds": 5}}));
    cluster.wait_running("orphaned", 1);
    let pods = cluster.pods("orphaned");
    let node = pods[1]["spec"]["nodeName"].as_str().unwrap().to_owned();
    cluster.kubelet.stop_node(&node);
    cluster.kubelet.pod("orphaned-0-1").exit(75, &message(FailureKind::PeerLost, 0, "lost stage 1"));
    let job = cluster.wait("orphaned", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(failure(&job)["reason"], "NodeLost");
    // the lost pod can't be deleted, and the new ones are created all the same
    until("the pods of attempt 2", 60, || {
        let new = |pod: &&Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2";
        (cluster.pods("orphaned").iter().filter(new).count() == 2).then_some(())
    });
    let stuck = cluster.plane.get("/api/v1/namespaces/default/pods/orphaned-1-1").unwrap();
    assert!(stuck["metadata"]["deletionTimestamp"].is_string());
    cluster.kubelet.resume_node(&node);
    let job = cluster.wait_running("orphaned", 2);
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn the_exit_of_a_deleted_pod_is_the_cause() {
    let cluster = shared();
    cluster.create("alone", json!({"stages": 1}));
    cluster.wait_running("alone", 1);
    cluster.plane.client().delete("/api/v1/namespaces/default/pods/alone-0-1");
    let job = cluster.wait_running("alone", 2);
    // no list has it any more: only the watch has delivered its exit
    assert_eq!((&failure(&job)["reason"], &failure(&job)["exitCode"]), (&json!("Drained"), &json!(143)));
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn a_stalled_group_is_restarted() {
    let cluster = shared();
    cluster.create("stalled", json!({"restart": {"stallTimeoutSeconds": 10}}));
    cluster.wait_running("stalled", 1);
    let training = StageStatus {
        phase: StagePhase::Training,
        progress: ProgressStatus { step: 3, ..ProgressStatus::default() },
        ..StageStatus::default()
    };
    cluster.kubelet.pod("stalled-0-1").set_status(training);
    let job = cluster.wait("stalled", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(failure(&job)["reason"], "Stalled");
    assert_eq!(job["status"]["progress"]["step"], 3);
}

#[test]
fn an_unreachable_stage_0_is_no_failure() {
    let cluster = shared();
    cluster.create("silent", json!({"restart": {"stallTimeoutSeconds": 10}}));
    cluster.wait_running("silent", 1);
    let training = StageStatus { phase: StagePhase::Training, ..StageStatus::default() };
    let stage_0 = cluster.kubelet.pod("silent-0-1");
    stage_0.set_status(StageStatus {
        progress: ProgressStatus { step: 1, ..ProgressStatus::default() },
        ..training.clone()
    });
    cluster.wait("silent", "heard", |job| has_condition(job, "Progressing", "True", "Training"));
    // another pod's response does not count
    stage_0.set_status(StageStatus { pod_uid: "another".into(), ..training });
    cluster.wait("silent", "unreachable", |job| has_condition(job, "Progressing", "Unknown", "StatusUnreachable"));
    assert_eq!(cluster.job("silent").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn a_long_preparation_that_nobody_can_ask_about_is_no_failure() {
    let cluster = shared();
    let never_ready = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "never-ready"}}});
    cluster.create("mute", json!({"template": never_ready, "restart": {"startupTimeoutSeconds": 8}}));
    let stage_0 = cluster.kubelet.pod("mute-0-1");
    let preparing = StageStatus { phase: StagePhase::Preparing, ..StageStatus::default() };
    stage_0.set_status(StageStatus { pod_uid: "another".into(), ..preparing.clone() });
    let told =
        |job: &Value| condition_of(job, "Progressing").is_some_and(|progressing| progressing["status"] == "Unknown");
    cluster.wait("mute", "not heard", told);
    // another job with the same time-out, which can be asked, is over it meanwhile
    cluster
        .create("asked", json!({"template": never_ready, "restart": {"startupTimeoutSeconds": 8, "maxRestarts": 0}}));
    cluster.wait_phase("asked", "Failed");
    let mute = cluster.job("mute").unwrap();
    assert_eq!((&mute["status"]["attempt"]["number"], &mute["status"]["phase"]), (&json!(1), &json!("Starting")));
    // heard again, it is judged again
    stage_0.set_status(preparing);
    let job = cluster.wait("mute", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(failure(&job)["reason"], "StartupTimeout");
}

#[test]
fn failing_saves_are_reported_and_restart_nothing() {
    let cluster = shared();
    cluster.create("unsaved", json!({}));
    cluster.wait_running("unsaved", 1);
    let training = |step| StageStatus {
        phase: StagePhase::Training,
        progress: ProgressStatus { step, ..ProgressStatus::default() },
        ..StageStatus::default()
    };
    let stage_0 = cluster.kubelet.pod("unsaved-0-1");
    let message = Some("the checkpoint of step 4 failed: no space left on device".to_owned());
    stage_0.set_status(StageStatus { save_failure: message, ..training(5) });
    let job =
        cluster.wait("unsaved", "unhealthy", |job| has_condition(job, "CheckpointsHealthy", "False", "SavingFails"));
    let condition = condition_of(&job, "CheckpointsHealthy").unwrap();
    assert_eq!(condition["message"], "the checkpoint of step 4 failed: no space left on device");
    let committed = CheckpointStatus { step: 8, ..CheckpointStatus::default() };
    stage_0.set_status(StageStatus { checkpoint: Some(committed), ..training(9) });
    let job =
        cluster.wait("unsaved", "healthy again", |job| has_condition(job, "CheckpointsHealthy", "True", "Committed"));
    assert_eq!(job["status"]["attempt"]["number"], 1);
    until("both events", 30, || {
        let events = cluster.events("unsaved");
        ["SavingFails", "SavingWorksAgain"].iter().all(|reason| events.iter().any(|e| e == reason)).then_some(())
    });
}

#[test]
fn pods_are_restricted_and_rejections_by_admission_are_reported() {
    let cluster = shared();
    cluster.create_namespace("strict");
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    cluster.plane.client().patch("/api/v1/namespaces/strict", &label).unwrap();
    cluster.create("strict/good", json!({}));
    cluster.wait_running("strict/good", 1);
    let root = json!({"template": {"spec": {"securityContext": {"runAsNonRoot": false, "runAsUser": 0}}}});
    cluster.create("strict/bad", root);
    let job = cluster.wait("strict/bad", "refused", |job| has_condition(job, "Scheduled", "False", "Forbidden"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("violates PodSecurity"));
    assert!(cluster.pods("strict/bad").is_empty());
}

#[test]
fn an_unreadable_record_stops_only_this_job() {
    let cluster = shared();
    cluster.create("garbled", json!({"suspend": true}));
    cluster.wait_phase("garbled", "Suspended");
    let garbage = json!({"status": {"record": r#"{"doing": 7}"#}});
    cluster.plane.client().patch(&format!("{}/status", crate::support::path("garbled")), &garbage).unwrap();
    cluster.edit("garbled", json!({"suspend": false}));
    let job = cluster.wait("garbled", "refused", |job| has_condition(job, "Accepted", "False", "UnknownRecord"));
    assert!(condition_of(&job, "Accepted").unwrap()["message"].to_string().contains("status.record"));
    assert!(cluster.pods("garbled").is_empty());
    cluster.create("after-it", json!({}));
    cluster.wait_running("after-it", 1);
}
