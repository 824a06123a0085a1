//! Tests that the CRD has the same defaults as the Rust types.

use serde_json::{Value, json};
use stagecoach_api::parse;

use super::rows::{job, rows};
use super::schema::{apply_defaults, root, violated_constraints, walk};

/// Turns all numbers into floats, so that 1 equals 1.0.
fn floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(floats).collect(),
        Value::Object(fields) => fields.iter().map(|(name, below)| (name.clone(), floats(below))).collect(),
        other => other.clone(),
    }
}

#[test]
fn the_defaults_are_those_of_the_types() {
    let root = root();
    for name in ["minimal", "full", "mixture", "custom"] {
        let job = job(name);
        let mut filled = job.clone();
        apply_defaults(&root, &mut filled);
        assert_eq!(violated_constraints(&root, &filled), [], "{name}");
        let read = serde_json::to_value(parse(&job.to_string(), name).unwrap()).unwrap();
        assert_eq!(floats(&filled["spec"]), floats(&read["spec"]), "{name}");
    }
}

#[test]
fn filling_in_changes_no_job() {
    let root = root();
    let accepted: Vec<_> = rows()
        .into_iter()
        .filter(|row| row.parse.is_none() && row.validate.is_none() && row.server.is_none())
        .collect();
    assert!(accepted.len() > 15, "{}", accepted.len());
    for row in accepted {
        let mut filled = row.manifest.clone();
        apply_defaults(&root, &mut filled);
        let read = |job: &Value| parse(&job.to_string(), "row").unwrap();
        assert_eq!(read(&filled).spec.pipeline, read(&row.manifest).spec.pipeline, "{:?}", row.changed);
        assert_eq!(read(&filled).spec.training, read(&row.manifest).spec.training, "{:?}", row.changed);
        let without = read(&row.manifest).without_defaults();
        assert_eq!(read(&without), read(&row.manifest), "{:?}", row.changed);
    }
}

/// `without_defaults` keeps the default of a field in a list item. The operator hashes the items, so it can't omit
/// these fields later without a restart of every job that has such an item.
#[test]
fn no_new_field_of_a_list_item_is_written_with_its_default() {
    let mut found = Vec::new();
    walk(&root()["properties"]["spec"], "spec", &mut |path, schema| {
        if path.contains("[]") && !path.starts_with("spec.template") && schema.get("default").is_some() {
            found.push(path.to_owned());
        }
    });
    let known = [
        "spec.data.sources[].onExhausted",
        "spec.data.sources[].weight",
        "spec.restart.podFailurePolicy.rules[].onPodConditions[].status",
    ];
    found.sort();
    assert_eq!(
        found, known,
        "a trainer of an earlier version refuses a new field of a list item, even with its default: add \
         `skip_serializing_if` to the field, so that the default is not written"
    );
    let mut job = job("mixture");
    job["spec"]["data"]["sources"] = json!([{"name": "a", "paths": ["a.txt"]}]);
    let written = parse(&job.to_string(), "job.yaml").unwrap().spec.without_defaults();
    let item = r#"{"name":"a","paths":["a.txt"],"weight":1,"onExhausted":"Repeat"}"#;
    assert_eq!(written["data"]["sources"][0].to_string(), item);
}

/// In the template and the status, only fields that are keys of list items have defaults, because the API server can't
/// merge items without their keys.
#[test]
fn nothing_is_filled_in_where_kubernetes_or_the_operator_decides() {
    let mut found = Vec::new();
    walk(&root(), "", &mut |path, schema| {
        if (path.starts_with("spec.template") || path.starts_with("status")) && schema.get("default").is_some() {
            found.push((path.to_owned(), schema["default"].clone()));
        }
    });
    let expected = [
        ("spec.template.spec.containers[].ports[].protocol", json!("TCP")),
        ("spec.template.spec.imagePullSecrets[].name", json!("")),
        ("spec.template.spec.initContainers[].ports[].protocol", json!("TCP")),
    ];
    assert_eq!(found, expected.map(|(path, default)| (path.to_owned(), default)));
}
