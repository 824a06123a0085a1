//! Tests of the operator's HTTP endpoints, logs and shutdown.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use stagecoach_api::contract::{GroupStatus, StagePhase, StageStatus};
use stagecoach_api::job::{CheckpointStatus, ProgressStatus};
use stagecoach_cluster::until;

use crate::support::{OperatorProcess, shared};

/// Sends one HTTP request. `request` is its method and path, such as `GET /metrics`. Returns the whole response: status
/// line, headers and body.
pub fn ask(address: &str, request: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the address at which an operator serves HTTP. The address comes from the operator's log, which must be JSON.
pub fn address(operator: &OperatorProcess) -> String {
    until("the operator to serve", || {
        let log = operator.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find_map(|line| line["fields"]["address"].as_str().map(str::to_owned))
    })
}

#[test]
fn it_serves_metrics_and_log_level_and_releases_the_lease_on_sigterm() {
    let cluster = shared();
    cluster.create_namespace("serving");
    let env = [
        ("STAGECOACH_LOG_FORMAT", "json"),
        ("STAGECOACH_LOG_LEVEL", "info"),
        ("STAGECOACH_LEADER_ELECTION", "true"),
        ("POD_NAME", "one"),
        ("STAGECOACH_NAMESPACES", "serving"),
    ];
    let mut operator = cluster.operator(cluster.kubeconfig(), &env);
    let log = operator.log_file().to_owned();
    let lines = || -> Vec<Value> {
        std::fs::read_to_string(&log).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let address = address(&operator);
    for path in ["/healthz", "/readyz"] {
        assert!(ask(&address, &format!("GET {path}"), "").starts_with("HTTP/1.1 200"), "{path}");
    }
    cluster.create("serving/job", json!({}));
    cluster.wait_running("serving/job", 1);
    cluster.kubelet.pod("serving/job-0-1").exit(1, "");
    cluster.wait_running("serving/job", 2);
    let wait_for_metric = |wanted: &str| {
        until(wanted, || ask(&address, "GET /metrics", "").contains(wanted).then_some(()));
    };
    wait_for_metric("stagecoach_jobs{phase=\"Running\"} 1");
    wait_for_metric("stagecoach_restarts_total{reason=\"Error\"} 1");
    wait_for_metric("stagecoach_recovery_seconds_count 1");
    cluster.kubelet.pod("serving/job-0-2").set_status(StageStatus {
        phase: StagePhase::Training,
        group: Some(GroupStatus { fence: 2, joined_at: 1, loaded_at: 2, first_step_at: 3, ..GroupStatus::default() }),
        progress: ProgressStatus { step: 9, ..ProgressStatus::default() },
        checkpoint: Some(CheckpointStatus { step: 4, ..CheckpointStatus::default() }),
        ..StageStatus::default()
    });
    wait_for_metric("stagecoach_recovery_phase_seconds_count{phase=\"first_step\"} 1");
    cluster.wait("serving/job", "at checkpoint 4", |job| job["status"]["checkpoint"]["step"] == 4);
    wait_for_metric("stagecoach_leader 1");
    // the log level changes at run time
    let debug = |lines: &[Value]| lines.iter().filter(|line| line["level"] == "DEBUG").count();
    assert_eq!(debug(&lines()), 0);
    assert!(ask(&address, "PUT /log-level", "no such = level").starts_with("HTTP/1.1 400"));
    assert!(ask(&address, "PUT /log-level", "debug").starts_with("HTTP/1.1 200"));
    cluster.kubelet.pod("serving/job-0-2").exit(1, "");
    cluster.wait_running("serving/job", 3);
    wait_for_metric("stagecoach_steps_lost_total 5");
    until("a line at debug level", || (debug(&lines()) > 0).then_some(()));
    // SIGTERM: the operator releases the Lease and exits with 0
    operator.signal(15);
    let status = until("the operator to exit", || operator.ended());
    assert!(status.success(), "{status}");
    let lease = cluster
        .plane
        .get("/apis/coordination.k8s.io/v1/namespaces/stagecoach-system/leases/stagecoach-operator")
        .unwrap();
    assert_ne!(lease["spec"]["holderIdentity"], "one", "{lease:#}");
}
