//! Keeps pods off nodes.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Keeps a pod of `pod_spec` off these nodes, in addition to the pod's own demands on nodes. Each alternative among
/// those demands gets the new demand.
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
        // a field allows only one value
        fields.extend(nodes.iter().map(|node| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]})));
        term.insert("matchFields".to_owned(), fields.into());
        Value::Object(term)
    };
    required.insert("nodeSelectorTerms".to_owned(), terms.iter().map(with_demand).collect());
}
