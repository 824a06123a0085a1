//! Builds Kueue's objects as plain JSON. Namespaced objects are in the namespace `default`, unless they name another.

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::object::merge;

/// The API group and version of all kinds in this file. A request must name the group, because Kubernetes itself has a
/// resource `workloads` since 1.36.
pub const API: &str = "kueue.x-k8s.io/v1beta2";

/// Returns the API path of all objects of a kind, such as `Workload`, in a namespace. `namespace` has no effect for a
/// cluster-scoped kind.
pub fn collection(kind: &str, namespace: &str) -> String {
    let kind = kind.to_lowercase();
    let plural = match kind.as_str() {
        "topology" => "topologies".into(),
        "workloadpriorityclass" => "workloadpriorityclasses".into(),
        _ => format!("{kind}s"),
    };
    match kind.as_str() {
        "workload" | "localqueue" => format!("/apis/{API}/namespaces/{namespace}/{plural}"),
        _ => format!("/apis/{API}/{plural}"),
    }
}

/// Creates objects of Kueue in the order of `objects`.
///
/// # Panics
/// If the API server refuses an object.
#[track_caller]
pub fn create(client: &Client, objects: &[Value]) {
    for object in objects {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let path = collection(object["kind"].as_str().unwrap(), namespace);
        client.create(&path, object).unwrap_or_else(|refusal| panic!("{path}: {refusal}\n{object}"));
    }
}

/// Returns a ResourceFlavor. `spec` is for example `{"nodeLabels": {"gpu": "h200"}, "topologyName": "racks"}`, and may
/// also have `tolerations`.
pub fn resource_flavor(name: &str, spec: Value) -> Value {
    object("ResourceFlavor", name, spec)
}

/// Returns a Topology with these node labels as its levels, the widest first.
pub fn topology(name: &str, levels: &[&str]) -> Value {
    let levels: Vec<Value> = levels.iter().map(|label| json!({"nodeLabel": label})).collect();
    object("Topology", name, json!({"levels": levels}))
}

/// Returns a ClusterQueue for all namespaces. An element of `flavors` is a flavor's name and its quotas, such as
/// `("default", json!({"cpu": 3}))`. All flavors must have quotas of the same resources. Kueue tries the flavors in
/// this order. This function merges `spec`, such as `{"preemption": {"withinClusterQueue": "LowerPriority"}}`, into the
/// spec of the ClusterQueue.
pub fn cluster_queue(name: &str, flavors: &[(&str, Value)], spec: Value) -> Value {
    let quota = |of: &Value| -> Vec<Value> {
        let quantities = of.as_object().into_iter().flatten();
        quantities.map(|(resource, quantity)| json!({"name": resource, "nominalQuota": quantity})).collect()
    };
    let covered: Vec<&String> =
        flavors.first().and_then(|(_, of)| of.as_object()).into_iter().flat_map(Map::keys).collect();
    let flavors: Vec<Value> =
        flavors.iter().map(|(flavor, of)| json!({"name": flavor, "resources": quota(of)})).collect();
    let mut whole = json!({
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
    });
    merge(&mut whole, spec);
    object("ClusterQueue", name, whole)
}

/// Returns a LocalQueue without a namespace. [`create`] creates it in `default`.
pub fn local_queue(name: &str, cluster_queue: &str) -> Value {
    object("LocalQueue", name, json!({"clusterQueue": cluster_queue}))
}

/// Returns a WorkloadPriorityClass.
pub fn priority_class(name: &str, value: i32) -> Value {
    json!({"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value})
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})
}
