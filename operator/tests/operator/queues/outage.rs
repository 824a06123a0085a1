//! Tests of a job during outages of Kueue.

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{Kueue, collection};
use stagecoach_cluster::{ControlPlaneSettings, until};

use super::{message, start};
use crate::support::{TestCluster, condition_of, path};

#[test]
fn a_job_survives_that_kueue_is_away() {
    // use a separate cluster, because other tests need Kueue
    let queues = start();
    let cluster = &queues.cluster;
    let queue = queues.queue(4, json!({}));

    // outage before the Workload exists: the API server rejects the Workload, because Kueue's webhooks do not answer
    queues.kueue.kill();
    queues.create("patient", &queue, json!({"spec": {"restart": {"reformTimeoutSeconds": 60}}}));
    cluster.wait("patient", "waiting", |job| job["status"]["phase"] == "Pending");
    assert!(queues.workloads("patient").is_empty());
    queues.kueue.run();
    cluster.wait_running("patient", 1);
    let admitted = queues.wait_workload("patient", "PodsReady", "True");

    // outage while a job trains: the new pod of a lost stage can't be created until Kueue's webhook answers, and the
    // job keeps its admission
    queues.kueue.kill();
    cluster.kubelet.pod("patient-1-1").exit(1, "");
    cluster.wait("patient", "without a stage", |job| job["status"]["restarts"]["replaced"] == 1);
    queues.kueue.run();
    cluster.wait("patient", "whole", |job| job["status"]["readyStages"] == 2);
    let after = queues.workload("patient").unwrap();
    assert_eq!(after["status"]["admission"], admitted["status"]["admission"]);

    // outage between a change of the stages and the next admission
    queues.kueue.kill();
    cluster.edit("patient", json!({"stages": 3}));
    cluster.wait_phase("patient", "Pending");
    queues.kueue.run();
    cluster.wait_running("patient", 2);

    // outage at the end of a job
    queues.kueue.kill();
    cluster.finish("patient", 2, 3);
    cluster.wait_phase("patient", "Complete");
    queues.kueue.run();
    until("the Workload to be finished", || condition_of(queues.workloads("patient").first()?, "Finished").map(drop));
    cluster.plane.client().delete(&path("patient"));
    until("its Workload to go with it", || queues.workloads("patient").is_empty().then_some(()));
}

/// More jobs than the operator reconciles at the same time.
const JOBS: u32 = 20;

#[test]
fn jobs_with_a_queue_hold_up_no_other_job_before_kueue_is_installed() {
    let cluster = TestCluster::with_values(ControlPlaneSettings::default(), &json!({"kueue": {"enabled": true}}));
    cluster.run_operator(&[("STAGECOACH_KUEUE", "true"), ("STAGECOACH_NAMESPACES", "default")]);
    for number in 0..JOBS {
        cluster.create(&format!("early-{number}"), json!({"scheduling": {"kueue": {"queueName": "team"}}}));
    }
    let is_reported = |job: &Value| message(job, "Admitted").contains("can't list the Workloads of Kueue");
    for number in 0..JOBS {
        let job = cluster.wait(&format!("early-{number}"), "reported as waiting for Kueue", is_reported);
        assert_eq!(job["status"]["phase"], "Pending");
    }
    cluster.create("unqueued", json!({}));
    cluster.wait_running("unqueued", 1);

    let _kueue = Kueue::start(&cluster.plane, json!({}));
    cluster.wait("early-0", "in its queue", |job| !is_reported(job));
    let workloads = format!("{}?labelSelector=stagecoach.dev/job=early-0", collection("Workload", "default"));
    until("the Workload", || (!cluster.plane.client().list(&workloads).is_empty()).then_some(()));
}
