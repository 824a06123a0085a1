//! Tests of `spec.restart`: how exit codes, the pod failure policy and the budget decide whether a failure restarts the
//! job, and when the restart begins.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{condition_of, has_condition, last_failure, shared};

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
    assert_eq!(last_failure(&job)["reason"], "Evicted");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 1, "replaced": 0, "budgetLeft": 2}));
    cluster.kubelet.pod("policed-0-3").oom();
    let job = cluster.wait_phase("policed", "Failed");
    assert!(has_condition(&job, "Failed", "True", "PodFailurePolicy"));
    assert_eq!(last_failure(&job)["reason"], "OutOfMemory");
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
    let message = &condition_of(&job, "Failed").unwrap()["message"];
    assert_eq!(message, "restart.maxRestarts is used up: stage 1: exited with code 1");
    assert_eq!(job["status"]["restarts"], json!({"total": 2, "counted": 2, "replaced": 0, "budgetLeft": 0}));
    // pods of the last attempt may still exist for their logs, but the operator creates no new pods
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
    until("its pods to go", || cluster.pods("prompt").is_empty().then_some(()));
    let is_held_back = |job: &Value| {
        let scheduled = condition_of(job, "Scheduled").unwrap_or_default();
        let message = scheduled["message"].as_str().unwrap_or_default();
        scheduled["status"] == "False" && message.starts_with("the back-off after the last failure ends at ")
    };
    let job = cluster.wait("prompt", "held back", is_held_back);
    assert_eq!(job["status"]["attempt"]["number"], 3);
}
