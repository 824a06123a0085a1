//! Compares two identities field by field. An identity contains the settings and the data that determine a run's
//! results.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A field in which two identities differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdentityDifference {
    /// The path of the field, such as `model.llama.hiddenSize`.
    pub path: String,
    /// The value in this run's identity, or `None` if the field is absent.
    pub current: Option<Value>,
    /// The value in the checkpoint's identity, or `None` if the field is absent.
    pub recorded: Option<Value>,
}

impl fmt::Display for IdentityDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<Value>| value.as_ref().map_or("absent".to_owned(), Value::to_string);
        let path = if self.path.is_empty() { "identity" } else { &self.path };
        write!(f, "{path} is {} here and {} in the checkpoint", show(&self.current), show(&self.recorded))
    }
}

/// Returns the fields in which a run's identity `current` differs from a checkpoint's identity `recorded`. Objects, and
/// arrays of equal length, are compared element by element.
pub fn differences(current: &Value, recorded: &Value) -> Vec<IdentityDifference> {
    let mut found = Vec::new();
    compare("", Some(current), Some(recorded), &mut found);
    found
}

fn compare(path: &str, current: Option<&Value>, recorded: Option<&Value>, found: &mut Vec<IdentityDifference>) {
    match (current, recorded) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let inner = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            for (key, value) in a {
                compare(&inner(key), Some(value), b.get(key), found);
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                compare(&inner(key), None, Some(value), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (x, y)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{index}]"), Some(x), Some(y), found);
            }
        }
        _ if current == recorded => {}
        _ => found.push(IdentityDifference {
            path: path.to_owned(),
            current: current.cloned(),
            recorded: recorded.cloned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_named_by_path() {
        let current = json!({"model": {"hiddenSize": 768, "tied": true}, "betas": [0.9, 0.99], "seed": 1});
        let recorded = json!({"seed": 1, "betas": [0.9, 0.95], "model": {"hiddenSize": 512}, "corpus": "ab"});
        let messages: Vec<String> =
            differences(&current, &recorded).iter().map(IdentityDifference::to_string).collect();
        assert_eq!(
            messages,
            [
                "model.hiddenSize is 768 here and 512 in the checkpoint",
                "model.tied is true here and absent in the checkpoint",
                "betas[1] is 0.99 here and 0.95 in the checkpoint",
                "corpus is absent here and \"ab\" in the checkpoint",
            ]
        );
        assert!(differences(&current, &current.clone()).is_empty());
        assert_eq!(differences(&json!([1]), &json!([1, 2])).len(), 1);
    }
}
