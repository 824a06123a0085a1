//! Tests that a pod that does not answer delays neither the recovery of its own job nor the recovery of other jobs.

use serde_json::json;
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::CheckpointStatus;
use stagecoach_cluster::{Fate, Proxy};
use tokio::sync::watch;

use crate::support::shared;

/// The number of jobs whose pods do not answer. A poll of such a pod ends only at its time limit, so polling these pods
/// one after another would take a minute.
const SILENT_JOBS: usize = 30;

#[test]
fn pods_that_do_not_answer_hold_up_no_restart() {
    let cluster = shared();
    cluster.create_namespace("silence");
    let env = [("STAGECOACH_NAMESPACES", "silence"), ("STAGECOACH_WORKERS", "1")];
    let _operator = cluster.operator(cluster.kubeconfig(), &env);
    let hangs = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "hang"}},
        "spec": {"terminationGracePeriodSeconds": 0}});
    for number in 0..SILENT_JOBS {
        cluster.create(&format!("silence/silent-{number}"), json!({"stages": 1, "template": hangs}));
    }
    for number in 0..SILENT_JOBS {
        cluster.kubelet.pod(&format!("silence/silent-{number}-0-1")).view();
    }
    cluster.create("silence/job", json!({}));
    for attempt in 1..=3 {
        cluster.wait_running("silence/job", attempt);
        cluster.kubelet.pod(&format!("silence/job-1-{attempt}")).exit(1, "");
    }
    cluster.wait_running("silence/job", 4);
}

#[test]
fn news_of_stage_0_does_not_wait_for_the_next_poll() {
    let cluster = shared();
    cluster.create_namespace("news");
    // the poll interval is longer than the test
    let env = [("STAGECOACH_NAMESPACES", "news"), ("STAGECOACH_POLL_SECONDS", "3600")];
    let _operator = cluster.operator(cluster.kubeconfig(), &env);
    cluster.create("news/job", json!({}));
    cluster.wait_running("news/job", 1);
    for step in [4, 8] {
        let checkpoint = Some(CheckpointStatus { step, ..CheckpointStatus::default() });
        let training = StageStatus { phase: StagePhase::Training, checkpoint, ..StageStatus::default() };
        cluster.kubelet.pod("news/job-0-1").set_status(training);
        cluster.wait("news/job", "reported", |job| job["status"]["checkpoint"]["step"] == step);
    }
}

#[test]
fn a_log_that_comes_late_holds_up_no_restart_and_is_in_the_status_all_the_same() {
    let cluster = shared();
    cluster.create_namespace("logs");
    let proxy = Proxy::start(cluster.kubeconfig(), cluster.plane.folder());
    let (release, is_released) = watch::channel(false);
    proxy.rule(move |seen| if seen.path.ends_with("/log") { Fate::Hold(is_released.clone()) } else { Fate::Pass });
    let _operator = cluster.operator(proxy.kubeconfig(), &[("STAGECOACH_NAMESPACES", "logs")]);
    cluster.create("logs/job", json!({}));
    cluster.wait_running("logs/job", 1);
    cluster.kubelet.pod("logs/job-1-1").log("the last words");
    cluster.kubelet.pod("logs/job-1-1").exit(1, "");
    let job = cluster.wait("logs/job", "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert!(job["status"]["lastFailure"]["logTail"].is_null(), "the failure is recorded before its log is read");
    // the pod is kept until its log has been read
    release.send(true).unwrap();
    let job = cluster.wait("logs/job", "read", |job| job["status"]["lastFailure"]["logTail"].is_string());
    assert_eq!(job["status"]["lastFailure"]["logTail"], "the last words\n");
    assert_eq!(job["status"]["attempt"]["number"], 2);
    cluster.wait("logs/job", "without the failed pod", |_| {
        cluster.pods("logs/job").iter().all(|pod| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == "2")
    });
}
