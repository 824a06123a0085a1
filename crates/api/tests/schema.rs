//! The schema that the CRD is made from.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use stagecoach_api::PipelineJob;

fn schema() -> Value {
    let settings = schemars::generate::SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    serde_json::to_value(settings.into_generator().into_root_schema_for::<PipelineJob>()).unwrap()
}

/// Every schema below one, with its path.
fn walk<'a>(schema: &'a Value, path: String, found: &mut Vec<(String, &'a Value)>) {
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(below, format!("{path}.{name}"), found);
    }
    if let Some(items) = schema.get("items") {
        walk(items, format!("{path}[]"), found);
    }
    found.push((path, schema));
}

#[test]
fn every_object_says_what_it_holds_and_every_field_what_it_is() {
    let schema = schema();
    let mut found = Vec::new();
    walk(&schema, String::new(), &mut found);
    assert!(found.len() > 120, "{} fields", found.len());
    for (path, schema) in found {
        let is_object = schema["type"] == "object";
        let open =
            schema.get("additionalProperties").is_some() || schema["x-kubernetes-preserve-unknown-fields"] == true;
        assert!(!is_object || open || schema.get("properties").is_some(), "{path}: {schema}");
        if !path.ends_with("[]") {
            assert!(schema.get("description").is_some(), "{path}: {schema}");
        }
        assert!(schema.get("$ref").is_none(), "{path}: {schema}");
    }
}

#[test]
fn the_schema_has_the_spellings_of_the_api() {
    let text = schema().to_string();
    for word in
        ["1F1B", "ZBVZeroBubble", "adamW", "numKeyValueHeads", "WSD", "RestartUncounted", "claimName", "everySteps"]
    {
        assert!(text.contains(&format!("\"{word}\"")), "{word}");
    }
}
