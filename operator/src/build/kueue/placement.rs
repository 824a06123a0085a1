//! The placement of the pods of a job with a queue. An attempt keeps the placement with which it started.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stagecoach_api::contract::RANK_LABEL;

use super::keys::{
    PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY, SLICE_REQUIRED_TOPOLOGY, SLICE_SIZE, TOPOLOGY_GATE, UNCONSTRAINED_TOPOLOGY,
};
use super::pod_sets::{SPARES, pod_sets};
use crate::build::json::{array, object};
use crate::build::{AttemptTemplate, PodRole};

/// The placement of the pods of an attempt, by pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PodSetPlacements(pub(crate) BTreeMap<String, PodSetPlacement>);

/// The additions to each pod of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSetPlacement {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tolerations: Vec<Value>,
    /// Whether Kueue chooses the nodes. Until Kueue has chosen them, a scheduling gate keeps the scheduler from placing
    /// the pods.
    pub(crate) has_topology: bool,
}

impl PodSetPlacements {
    /// Adds the placement to a pod of an attempt.
    pub(crate) fn add_pod(
        &self,
        attempt: &AttemptTemplate,
        role: PodRole,
        labels: &mut BTreeMap<String, String>,
        annotations: &mut BTreeMap<String, String>,
        spec: &mut Map<String, Value>,
    ) {
        let spares = u32::from(self.0.contains_key(SPARES));
        let sets = pod_sets(&attempt.pod_template, attempt.mesh, spares);
        let Some(set) = sets.iter().find(|set| set.has(role, attempt.mesh)) else { return };
        let Some(pods) = self.0.get(&set.name) else { return };
        labels.extend(pods.labels.clone());
        if let PodRole::Stage(instance) = role {
            labels.insert(RANK_LABEL.into(), instance.rank.to_string());
        }
        annotations.extend(pods.annotations.clone());
        if !pods.node_selector.is_empty() {
            let mut selector = object(spec.get("nodeSelector"));
            selector.extend(pods.node_selector.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
            spec.insert("nodeSelector".into(), selector.into());
        }
        extend_list(spec, "tolerations", pods.tolerations.clone());
        if pods.has_topology {
            extend_list(spec, "schedulingGates", vec![json!({"name": TOPOLOGY_GATE})]);
            // Kueue's webhook for pods rejects `SLICE_REQUIRED_TOPOLOGY` without `SLICE_SIZE`
            if set.has_stages() && annotations.contains_key(SLICE_REQUIRED_TOPOLOGY) {
                let of_replica = set.count(1, 0).to_string();
                annotations.entry(SLICE_SIZE.into()).or_insert(of_replica);
            }
            let asks = [REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY];
            // by these annotations, Kueue recognises the pods that it places
            if !asks.iter().any(|key| annotations.contains_key(*key)) {
                annotations.insert(UNCONSTRAINED_TOPOLOGY.into(), "true".into());
            }
        }
    }
}

/// Adds to the list `field` of `spec` the items that the list does not have.
fn extend_list(spec: &mut Map<String, Value>, field: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    let mut all = array(spec.get(field));
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    spec.insert(field.into(), all.into());
}
