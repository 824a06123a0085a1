//! Registers the nodes once, and sends their heartbeats.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::KubeletState;
use super::status::now;

/// Creates the nodes, each with capacity for many pods and with `gpus` GPUs. The nodes name `port` as their kubelet's
/// port.
pub(super) async fn register(shared: &KubeletState, gpus: u32, port: u16) {
    let api: Api<Node> = Api::all(shared.client.clone());
    for name in shared.nodes.keys() {
        let node = node(name, gpus, port);
        let node = serde_json::from_value(node).unwrap();
        api.create(&PostParams::default(), &node).await.unwrap_or_else(|e| panic!("node {name}: {e}"));
    }
}

/// Reports every second that each node is ready, unless the node is silent. Never returns. By default, the controller
/// manager counts a node as lost after 50 s without a report.
pub(super) async fn heartbeats(shared: Arc<KubeletState>) {
    let api: Api<Node> = Api::all(shared.client.clone());
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        clock.tick().await;
        for (name, silent) in &shared.nodes {
            if !*silent.borrow() {
                let patch = json!({"status": {"conditions": conditions()}});
                // a failed report does no harm, since the next one follows a second later
                let _ = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch)).await;
            }
        }
    }
}

fn node(name: &str, gpus: u32, port: u16) -> Value {
    let mut capacity = json!({"cpu": "256", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "1000"});
    if gpus > 0 {
        capacity["nvidia.com/gpu"] = json!(gpus.to_string());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions(),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    })
}

fn conditions() -> Value {
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": now()});
    json!([
        condition("Ready", "True", "KubeletReady"),
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
    ])
}
