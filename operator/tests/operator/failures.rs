//! Tests of the root cause among several failures, and of its report in the status.

use serde_json::{Value, json};
use stagecoach_api::contract::{FailureKind, TerminationMessage};
use stagecoach_cluster::until;

use crate::support::{condition_of, exclusive, has_condition, last_failure, shared};

fn message(kind: FailureKind, stage: u32, text: &str) -> String {
    TerminationMessage::new(kind, stage, text).to_json()
}

#[test]
fn the_node_of_a_stage_that_computed_wrong_is_kept_out_of_the_next_attempts() {
    let cluster = shared();
    cluster.create("miscalculated", json!({"training": {"audit": {"everySteps": 10, "onDifference": "Restart"}}}));
    cluster.wait_running("miscalculated", 1);
    let nodes = |attempt: &str| -> Vec<String> {
        let is_of_attempt = |pod: &Value| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == attempt;
        let pods = cluster.pods("miscalculated").into_iter().filter(is_of_attempt);
        pods.map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
    };
    let pods = cluster.pods("miscalculated");
    let suspect = pods.iter().find(|pod| pod["metadata"]["name"] == "miscalculated-1-1").unwrap();
    let node = suspect["spec"]["nodeName"].as_str().unwrap().to_owned();
    let pod = |name: &str| cluster.kubelet.pod(name);
    pod("miscalculated-1-1").exit(1, &message(FailureKind::WrongResult, 1, "audit of step 20: stage 1 computed wrong"));
    let job = cluster.wait_running("miscalculated", 2);
    assert_eq!(last_failure(&job)["reason"], "WrongResult");
    let record: Value = serde_json::from_str(job["status"]["record"].as_str().unwrap()).unwrap();
    assert_eq!(record["excludedNodes"], json!([node]));
    assert!(has_condition(&job, "AuditsEqual", "False", "StageDiffers"), "{:#}", job["status"]["conditions"]);
    let described = condition_of(&job, "AuditsEqual").unwrap()["message"].clone();
    assert_eq!(described, format!("audit of step 20: stage 1 computed wrong; pod miscalculated-1-1 is on node {node}"));
    assert!(!nodes("2").is_empty() && !nodes("2").contains(&node), "{:?}", nodes("2"));
    // attempt 3 also excludes the node, although another failure ended attempt 2
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
    let failure = last_failure(&job);
    assert_eq!(
        (&failure["stage"], &failure["pod"], &failure["exitCode"]),
        (&json!(1), &json!("culprit-1-1"), &json!(1))
    );
    assert_eq!(failure["message"], "ran into a wall");
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    assert!(cluster.pods("culprit").iter().all(|pod| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2"));
    // the log is read in the background
    let read = cluster.wait("culprit", "read", |job| job["status"]["lastFailure"]["logTail"].is_string());
    let tail = read["status"]["lastFailure"]["logTail"].as_str().unwrap();
    assert!(tail.ends_with("the last words of stage 1\n") && tail.len() <= 2048, "{tail}");
    // each event describes its own attempt
    until("the events of both attempts", || {
        let notes = cluster.event_notes("culprit");
        let described = |note: &str| notes.iter().any(|found| found == note);
        let failed = "attempt 1: stage 1: Error: ran into a wall";
        ["attempt 1 with 3 stages", failed, "attempt 2 with 3 stages"].into_iter().all(described).then_some(())
    });
}

#[test]
fn an_oom_kill_counts_and_an_eviction_does_not() {
    let cluster = shared();
    cluster.create("memory", json!({}));
    cluster.wait_running("memory", 1);
    cluster.kubelet.pod("memory-1-1").oom();
    let job = cluster.wait_running("memory", 2);
    assert_eq!(last_failure(&job)["exitCode"], 137);
    assert!(last_failure(&job)["message"].as_str().unwrap().contains("memory limit"), "{}", last_failure(&job));
    assert_eq!(job["status"]["restarts"]["counted"], 1);
    cluster.kubelet.pod("memory-0-2").evict();
    let job = cluster.wait_running("memory", 3);
    assert_eq!(last_failure(&job)["reason"], "Evicted");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 1, "replaced": 0, "budgetLeft": 2}));
}

#[test]
fn a_deleted_pod_restarts_the_group() {
    let cluster = shared();
    cluster.create("deleted", json!({}));
    cluster.wait_running("deleted", 1);
    cluster.plane.client().delete("/api/v1/namespaces/default/pods/deleted-1-1");
    // the trainers agree on the step after which they save and exit
    cluster.kubelet.pod("deleted-0-1").exit(143, "");
    let job = cluster.wait_running("deleted", 2);
    assert_eq!(last_failure(&job)["reason"], "Drained");
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}

#[test]
fn an_invalid_job_fails_at_once() {
    let cluster = shared();
    // the job is kept long enough for its final status
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
fn a_failed_init_container_is_reported_and_not_the_sidecar_that_ends_for_it() {
    let cluster = shared();
    let init = json!([
        {"name": "logs", "image": "logs:1", "restartPolicy": "Always"},
        {"name": "fetch", "image": "fetch:1", "command": ["exit", "78", "0", "no such bucket"]},
    ]);
    let restart = json!({"maxRestarts": 1});
    cluster.create("unfetched", json!({"restart": restart, "template": {"spec": {"initContainers": init}}}));
    let job = cluster.wait_phase("unfetched", "Failed");
    // exit code 78 of an init container does not mean an invalid config, as it does for a stage
    assert!(has_condition(&job, "Failed", "True", "BudgetExhausted"), "{:#}", job["status"]);
    let failure = last_failure(&job);
    assert_eq!((&failure["reason"], &failure["exitCode"]), (&json!("Error"), &json!(1)));
    assert_eq!(failure["message"], "init container fetch exited with code 78: no such bucket");
}

#[test]
fn a_dead_node_delays_a_restart_by_its_timeout_at_most() {
    // no other job's pods may be on the lost node
    let cluster = exclusive();
    // the job runs on two nodes, and one node is lost
    let spread = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"stagecoach.dev/job": "orphaned"}}}]}}}});
    cluster.create("orphaned", json!({"template": spread, "restart": {"terminationTimeoutSeconds": 5}}));
    cluster.wait_running("orphaned", 1);
    let pods = cluster.pods("orphaned");
    let node = pods[1]["spec"]["nodeName"].as_str().unwrap().to_owned();
    cluster.kubelet.stop_node(&node);
    cluster.kubelet.pod("orphaned-0-1").exit(75, &message(FailureKind::PeerLost, 0, "lost stage 1"));
    let job = cluster.wait("orphaned", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(last_failure(&job)["reason"], "NodeLost");
    // the operator creates the new pods although the lost pod can't be deleted
    until("the pods of attempt 2", || {
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
    // no list contains the pod, so only the watch has delivered its exit
    assert_eq!((&last_failure(&job)["reason"], &last_failure(&job)["exitCode"]), (&json!("Drained"), &json!(143)));
    assert_eq!(job["status"]["restarts"]["counted"], 0);
}
