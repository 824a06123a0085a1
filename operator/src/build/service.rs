//! The Service that finds stage 0.

use serde_json::{Value, json};
use stagecoach_api::contract::{HTTP_PORT, MASTER_PORT};

use super::{Owner, names, service_name, stage_0_selector};

/// In front of stage 0 of `attempt`. It exists before the pods, so that no resolver ever learns that the name is unknown,
/// and finds them before they are ready, since nobody gets ready without it.
pub fn service(owner: &Owner, attempt: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names::metadata(owner, &service_name(owner), None),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": true,
            "selector": stage_0_selector(owner, attempt),
            "ports": [
                { "name": "rendezvous", "port": MASTER_PORT, "targetPort": MASTER_PORT, "protocol": "TCP" },
                { "name": "http", "port": HTTP_PORT, "targetPort": HTTP_PORT, "protocol": "TCP" },
            ],
        },
    })
}
