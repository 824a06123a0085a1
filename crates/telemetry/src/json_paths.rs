//! Flattens JSON objects to their leaves, by paths such as `training.steps`. A list is a single leaf.

use std::collections::BTreeMap;

use serde_json::Value;

/// Returns the leaves of a value as JSON, by their paths.
pub(crate) fn json_by_path(value: &Value) -> BTreeMap<String, String> {
    let mut leaves = BTreeMap::new();
    flatten_json("", value, &mut leaves);
    leaves
}

/// Adds the leaves of `value` to `into`, by their paths. `path` is the path of `value`.
pub fn flatten_json(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten_json(&inner, value, into);
            }
        }
        leaf => {
            into.insert(path.to_owned(), leaf.to_string());
        }
    }
}
