//! Pods that the cluster takes away: by a more important pod, and by a taint. Nobody's fault, and told as such.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use serde_json::{Value, json};
use support::Scene;

/// All GPUs of a node of the scene.
const ALL: u32 = 64;

fn gpus() -> Value {
    json!({"limits": {"nvidia.com/gpu": ALL}})
}

#[test]
fn what_the_cluster_takes_away_is_not_counted() {
    let scene = Scene::start();
    let client = scene.plane.client();

    // a job on two nodes, another pod on the third: whoever is more important takes a stage's place
    let template =
        json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "trainer", "resources": gpus()}]}});
    scene.create("preempted", json!({"scheduling": {"gang": "None"}, "template": template}));
    scene.wait_running("preempted", 1);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"},
        "value": 1000});
    client.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["urgent-0", "urgent-1"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "priorityClassName": "urgent", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "a", "image": "a", "resources": gpus()}]}});
        client.create(pods, &pod).unwrap();
    }
    let told = scene.wait("preempted", "told of it", |job| job["status"]["lastFailure"]["reason"] == "Preempted");
    assert_eq!(told["status"]["restarts"]["counted"], 0, "{:#}", told["status"]);
    client.delete(&format!("{pods}/urgent-0"));
    client.delete(&format!("{pods}/urgent-1"));
    scene.wait_running("preempted", 2);

    // a node that is to be left at once
    let on = |pod: &str| scene.plane.get(&format!("{pods}/{pod}")).unwrap()["spec"]["nodeName"].clone();
    let node = format!("/api/v1/nodes/{}", on("preempted-1-2").as_str().unwrap());
    let taint = json!([{"key": "broken", "effect": "NoExecute"}]);
    client.patch(&node, &json!({"spec": {"taints": taint}})).unwrap();
    let told = scene.wait("preempted", "told of it", |job| job["status"]["lastFailure"]["reason"] == "NodeLost");
    assert_eq!(told["status"]["lastFailure"]["stage"], 1);
    let job = scene.wait_running("preempted", 3);
    assert_eq!(job["status"]["restarts"]["counted"], 0, "{:#}", job["status"]);
}
