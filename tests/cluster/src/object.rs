//! Objects as plain JSON: changed, and looked into.

use serde_json::Value;

/// Merges changes into an object as a merge patch does: null removes a field, lists are replaced.
pub fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                match change {
                    Value::Null => drop(into.remove(&key)),
                    change => merge(into.entry(key).or_insert(Value::Null), change),
                }
            }
        }
        (into, changes) => *into = changes,
    }
}

/// A condition of an object's status.
pub fn condition_of(object: &Value, kind: &str) -> Option<Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
}
