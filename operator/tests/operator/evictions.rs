//! Tests of pods that are preempted, or evicted because of a taint. Their restarts do not count, and the status shows
//! the cause.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{exclusive, path};

/// The number of GPUs of a node of the cluster.
const GPUS_PER_NODE: u32 = 64;

fn gpus() -> Value {
    json!({"limits": {"nvidia.com/gpu": GPUS_PER_NODE}})
}

#[test]
fn preemptions_and_evictions_are_not_counted() {
    let cluster = exclusive();
    let client = cluster.plane.client();

    // the job's two pods and the first urgent pod fill the three nodes, so the second urgent pod preempts a stage
    let template =
        json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "trainer", "resources": gpus()}]}});
    cluster.create("preempted", json!({"scheduling": {"gang": "None"}, "template": template}));
    cluster.wait_running("preempted", 1);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"},
        "value": 1000});
    client.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["urgent-0", "urgent-1"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "priorityClassName": "urgent", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "a", "image": "a", "resources": gpus()}]}});
        // the admission plugin reads the class from a watch, which may be late
        until("admission to know the class", || match client.create(pods, &pod) {
            Ok(_) => Some(()),
            Err(refusal) if refusal.message.contains("no PriorityClass") => None,
            Err(refusal) => panic!("{refusal:?}"),
        });
    }
    let job = cluster.wait("preempted", "preempted", |job| job["status"]["lastFailure"]["reason"] == "Preempted");
    assert_eq!(job["status"]["restarts"]["counted"], 0, "{:#}", job["status"]);
    client.delete(&format!("{pods}/urgent-0"));
    client.delete(&format!("{pods}/urgent-1"));
    cluster.wait_running("preempted", 2);

    // a node gets a NoExecute taint
    let on = |pod: &str| cluster.plane.get(&format!("{pods}/{pod}")).unwrap()["spec"]["nodeName"].clone();
    let node = format!("/api/v1/nodes/{}", on("preempted-1-2").as_str().unwrap());
    let taint = json!([{"key": "broken", "effect": "NoExecute"}]);
    client.patch(&node, &json!({"spec": {"taints": taint}})).unwrap();
    let job = cluster
        .wait("preempted", "evicted from the tainted node", |job| job["status"]["lastFailure"]["reason"] == "NodeLost");
    assert_eq!(job["status"]["lastFailure"]["stage"], 1);
    let job = cluster.wait_running("preempted", 3);
    assert_eq!(job["status"]["restarts"]["counted"], 0, "{:#}", job["status"]);
    client.patch(&node, &json!({"spec": {"taints": null}})).unwrap();
    client.delete(&path("preempted"));
}
