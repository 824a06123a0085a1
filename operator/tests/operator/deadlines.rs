//! Tests of the timeouts for startup and for progress, and of the time that does not count towards these timeouts.
//! The names of this module and of `compatibility` let their tests, which mostly wait, begin early.

use serde_json::{Value, json};
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::ProgressStatus;

use crate::support::{condition_of, has_condition, last_failure, shared};

#[test]
fn a_group_that_never_becomes_ready_times_out() {
    let cluster = shared();
    let never = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "never-ready"}}});
    cluster.create("stuck", json!({"template": never, "restart": {"startupTimeoutSeconds": 10, "maxRestarts": 0}}));
    let job = cluster.wait_phase("stuck", "Failed");
    assert_eq!(last_failure(&job)["reason"], "StartupTimeout");
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
    assert_eq!(last_failure(&job)["reason"], "Stalled");
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
    cluster.wait("silent", "training", |job| has_condition(job, "Progressing", "True", "Training"));
    // the response contains another pod's UID, so the operator does not accept it as a report of stage 0
    stage_0.set_status(StageStatus { pod_uid: "another".into(), ..training });
    cluster.wait("silent", "unreachable", |job| has_condition(job, "Progressing", "Unknown", "StatusUnreachable"));
    assert_eq!(cluster.job("silent").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn a_long_preparation_without_reports_is_no_failure() {
    let cluster = shared();
    let never_ready = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "never-ready"}}});
    cluster.create("mute", json!({"template": never_ready, "restart": {"startupTimeoutSeconds": 8}}));
    let stage_0 = cluster.kubelet.pod("mute-0-1");
    let preparing = StageStatus { phase: StagePhase::Preparing, ..StageStatus::default() };
    stage_0.set_status(StageStatus { pod_uid: "another".into(), ..preparing.clone() });
    let reported =
        |job: &Value| condition_of(job, "Progressing").is_some_and(|progressing| progressing["status"] == "Unknown");
    cluster.wait("mute", "unreachable", reported);
    // wait until another job with the same timeout, whose pod answers, exceeds the timeout
    cluster
        .create("asked", json!({"template": never_ready, "restart": {"startupTimeoutSeconds": 8, "maxRestarts": 0}}));
    cluster.wait_phase("asked", "Failed");
    let mute = cluster.job("mute").unwrap();
    assert_eq!((&mute["status"]["attempt"]["number"], &mute["status"]["phase"]), (&json!(1), &json!("Starting")));
    // when the pod answers again, the timeout counts again
    stage_0.set_status(preparing);
    let job = cluster.wait("mute", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(last_failure(&job)["reason"], "StartupTimeout");
}
