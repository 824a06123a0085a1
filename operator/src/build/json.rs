//! Functions that add fields and items to the user's JSON objects.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

pub(super) fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

pub(super) fn array(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Converts an object to a map of strings. The CRD's schema allows only strings as values of labels and annotations.
/// Any other value becomes its JSON text.
pub(super) fn string_map(value: Option<&Value>) -> BTreeMap<String, String> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    object(value).into_iter().map(|(key, value)| (key, text(value))).collect()
}

/// Converts a typed part of an object to JSON. JSON can represent all values of k8s-openapi's types.
pub(super) fn to_json(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

/// Sets a field, if the object lacks it.
pub(super) fn set_default(object: &mut Map<String, Value>, field: &str, value: impl Serialize) {
    object.entry(field).or_insert_with(|| to_json(&value));
}

/// Returns the object `value`, with the fields of `defaults` that `value` lacks.
pub(super) fn with_defaults(value: Option<&Value>, defaults: &impl Serialize) -> Value {
    let mut all = object(value);
    for (field, default) in object(Some(&to_json(defaults))) {
        all.entry(field).or_insert(default);
    }
    all.into()
}

/// The keys that may identify the items of a list in a pod's spec, in the order in which they are tried.
const ITEM_KEYS: [&str; 3] = ["mountPath", "devicePath", "name"];

/// Returns `value` with `change` applied. The function merges objects field by field, and lists by the key that
/// identifies their items. A null removes a field. Any other change replaces the value.
pub(super) fn merged(value: &Value, change: &Value) -> Value {
    match (value, change) {
        (Value::Array(items), Value::Array(changes)) => {
            let all = || items.iter().chain(changes);
            match ITEM_KEYS.into_iter().find(|key| all().all(|item| item[key].is_string())) {
                Some(key) => merged_items(items, changes, key).into(),
                None => change.clone(),
            }
        }
        (_, Value::Object(changes)) => {
            let mut fields = object(Some(value));
            for (field, change) in changes {
                match change {
                    Value::Null => drop(fields.shift_remove(field)),
                    change => {
                        let changed = merged(fields.get(field).unwrap_or(&Value::Null), change);
                        fields.insert(field.clone(), changed);
                    }
                }
            }
            fields.into()
        }
        _ => change.clone(),
    }
}

fn merged_items(items: &[Value], changes: &[Value], key: &str) -> Vec<Value> {
    let mut all = items.to_vec();
    for change in changes {
        match all.iter_mut().find(|item| item[key] == change[key]) {
            Some(item) => *item = merged(item, change),
            None => all.push(merged(&Value::Null, change)),
        }
    }
    all
}

/// Adds each item, unless an item of the same name exists.
pub(super) fn add_named(items: &mut Vec<Value>, added: &[impl Serialize]) {
    for item in added.iter().map(to_json) {
        if !items.iter().any(|other| other["name"] == item["name"]) {
            items.push(item);
        }
    }
}
