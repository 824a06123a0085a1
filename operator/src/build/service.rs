//! The Service of stage 0.

use serde_json::{Value, json};
use stagecoach_api::contract::{HTTP_PORT, MASTER_PORT};

use super::{Owner, names, service_name, stage_0_match_labels};

/// The Service of stage 0 of `attempt`. Created before the pods, so that no resolver caches a negative DNS answer;
/// `publishNotReadyAddresses`, because stages become ready only after they have reached stage 0 through it.
pub(crate) fn service(owner: &Owner, attempt: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names::metadata(owner, &service_name(owner), None),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": true,
            "selector": stage_0_match_labels(owner, attempt),
            "ports": [
                { "name": "rendezvous", "port": MASTER_PORT, "targetPort": MASTER_PORT, "protocol": "TCP" },
                { "name": "http", "port": HTTP_PORT, "targetPort": HTTP_PORT, "protocol": "TCP" },
            ],
        },
    })
}
