//! The rule for the names of the cluster objects to which a job refers. Kubernetes requires DNS subdomains.

use serde_json::{Value, json};

/// Returns the schema's rules (`x-kubernetes-validations`) for the name of an object of `kind`.
pub(crate) fn object_name_rules(kind: &str) -> Value {
    json!([{
        "rule": "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "message": wrong_object_name(kind),
    }])
}

/// Returns the message about a text that can't be the name of an object of `kind`.
pub(crate) fn wrong_object_name(kind: &str) -> String {
    format!("is no name of a {kind}: use lower-case letters, digits, `-` and `.`, begin and end with a letter or digit")
}
