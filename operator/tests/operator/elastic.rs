//! Tests of elastic jobs, whose number of replicas follows the pods that the cluster can run.

use serde_json::{Value, json};

use crate::support::{has_condition, shared};

/// Returns the spec of an elastic job of one stage with at most `max` replicas, each on a different node.
fn spread(name: &str, max: u32) -> Value {
    let apart = json!({"labelSelector": {"matchLabels": {"stagecoach.dev/job": name}}, "topologyKey": "kubernetes.io/hostname"});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}});
    json!({
        "stages": 1, "elastic": {"minDataParallel": 1, "maxDataParallel": max, "stabilizationWindowSeconds": 1},
        "training": {"gradientBlocks": 4, "microbatches": 4}, "restart": {"reformTimeoutSeconds": 60},
        "template": {"spec": {"affinity": affinity}},
    })
}

/// The cluster has three nodes.
#[test]
fn a_job_runs_with_the_replicas_that_have_a_node() {
    let cluster = shared();
    let mut spec = spread("spread", 4);
    // after this time, a pod without a node would fail the attempt of a job that is not elastic
    spec["scheduling"] = json!({"timeoutSeconds": 1});
    cluster.create("spread", spec);
    let job = cluster.wait("spread", "three replicas", |job| job["status"]["trainingReplicas"] == 3);
    assert!(has_condition(&job, "Running", "True", "ReplicasMissing"), "{job:#}");
    let group = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/spread-1";
    let gang = cluster.plane.get(group).unwrap();
    assert_eq!(gang["spec"]["schedulingPolicy"]["gang"]["minCount"], 1, "{gang:#}");
    let config = cluster.plane.get("/api/v1/namespaces/default/configmaps/spread-1").unwrap();
    let file: Value = serde_json::from_str(config["data"]["job.yaml"].as_str().unwrap()).unwrap();
    assert_eq!(file["spec"]["elastic"]["maxDataParallel"], 4, "{file:#}");
    // the timeout of `spread` is over when a job that was created later has exceeded the same timeout
    let nowhere = json!({"scheduling": {"gang": "None", "timeoutSeconds": 1}, "template": {"spec": {"nodeSelector": {"nowhere": "true"}}}});
    cluster.create("nowhere", nowhere);
    cluster.wait("nowhere", "timed out", |job| job["status"]["lastFailure"]["reason"] == "Unschedulable");
    let job = cluster.job("spread").unwrap();
    assert_eq!(
        (&job["status"]["attempt"]["number"], &job["status"]["restarts"]["total"]),
        (&json!(1), &json!(0)),
        "{job:#}"
    );

    // a job of at most three replicas has no replica that waits for a node
    cluster.edit("spread", json!({"elastic": {"maxDataParallel": 3}}));
    let job = cluster.wait_running("spread", 2);
    assert_eq!(job["status"]["attempt"]["dataParallel"], 3);
    let job = cluster.wait("spread", "all replicas", |job| job["status"]["trainingReplicas"] == 3);
    assert!(has_condition(&job, "Running", "True", "AllReady"), "{job:#}");
}

#[test]
fn a_job_runs_with_the_replicas_for_which_there_is_quota() {
    let cluster = shared();
    cluster.create_namespace("few");
    cluster.limit_pods("few", "few", 2);
    let mut spec = spread("narrow", 3);
    spec["template"] = json!({});
    cluster.create("few/narrow", spec);
    cluster.wait("few/narrow", "two replicas", |job| job["status"]["trainingReplicas"] == 2);
    let job = cluster.wait("few/narrow", "refused", |job| {
        has_condition(job, "Scheduled", "False", "QuotaExceeded") && job["status"]["phase"] == "Running"
    });
    assert_eq!(job["status"]["attempt"]["number"], 1);
    // the operator creates the rejected replica when the quota has room
    let more = json!({"spec": {"hard": {"pods": "3"}}});
    cluster.plane.client().patch("/api/v1/namespaces/few/resourcequotas/few", &more).unwrap();
    let job = cluster.wait("few/narrow", "three replicas", |job| job["status"]["trainingReplicas"] == 3);
    assert_eq!((&job["status"]["attempt"]["number"], &job["status"]["restarts"]["total"]), (&json!(1), &json!(0)));
    assert_eq!(cluster.pod_names("few/narrow"), ["narrow-0-0-1", "narrow-1-0-1", "narrow-2-0-1"]);
}
