//! A node affinity that excludes nodes from the scheduling of a pod.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Excludes `nodes` from the scheduling of the pod, by a required node affinity in `pod_spec`. A node needs to match
/// only one entry of `nodeSelectorTerms`, so the function adds the exclusion to every existing entry.
pub fn keep_off_nodes(nodes: &BTreeSet<String>, pod_spec: &mut Map<String, Value>) {
    if nodes.is_empty() {
        return;
    }
    let path = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let mut required = pod_spec;
    for field in path {
        let below = required.entry(field).or_insert(Value::Null);
        if !below.is_object() {
            *below = Value::Object(Map::new());
        }
        let Value::Object(below) = below else { return };
        required = below;
    }
    let array = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut terms = array(required.get("nodeSelectorTerms"));
    if terms.is_empty() {
        terms.push(Value::Object(Map::new()));
    }
    let with_demand = |term: &Value| {
        let mut term = term.as_object().cloned().unwrap_or_default();
        let mut fields = array(term.get("matchFields"));
        // Kubernetes accepts only one value in each requirement of `matchFields`.
        fields.extend(nodes.iter().map(|node| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]})));
        term.insert("matchFields".to_owned(), fields.into());
        Value::Object(term)
    };
    required.insert("nodeSelectorTerms".to_owned(), terms.iter().map(with_demand).collect());
}
