//! The NetworkPolicy of a job's pods.

use serde_json::{Value, json};
use stagecoach_api::contract::HTTP_PORT;

use super::{Owner, names, pod_match_labels};

/// Who may read the pods' status, as selectors of a NetworkPolicy's peers: the operator, and the scraper if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReaders(pub Vec<Value>);

/// Allows only traffic among the job's pods, DNS, and `readers` to the status port.
pub fn network_policy(owner: &Owner, readers: &StatusReaders) -> Value {
    let own = json!({ "podSelector": { "matchLabels": pod_match_labels(owner) } });
    let dns = json!([{ "port": 53, "protocol": "UDP" }, { "port": 53, "protocol": "TCP" }]);
    let mut ingress = vec![json!({ "from": [own] })];
    if !readers.0.is_empty() {
        ingress.push(json!({ "from": readers.0, "ports": [{ "port": HTTP_PORT, "protocol": "TCP" }] }));
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names::metadata(owner, &owner.name, None),
        "spec": {
            "podSelector": { "matchLabels": pod_match_labels(owner) },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": [{ "to": [own] }, { "ports": dns }],
        },
    })
}
