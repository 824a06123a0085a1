//! The schema of a PipelineJob in the form that Kubernetes calls structural: every value has one type, there are no
//! references, and a choice of strings is an `enum`.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::PipelineJob;

/// The schema of a pod's template; `scripts/pod_template.py` writes it.
const POD_TEMPLATE: &str = include_str!("pod_template.json");

/// The keyword for the end of a refusal's sentence: the range of a number, or the remedy for an empty text or list.
pub(crate) const EXPECTED: &str = "x-expected";
/// The keyword of a path on the volume.
pub(crate) const VOLUME_PATH: &str = "x-volume-path";
/// The keyword of a path on the volume that may also be a URI of a source.
pub(crate) const SOURCE_PATH: &str = "x-source-path";
/// The keyword of a path on the volume that may also be the URI of a model.
pub(crate) const MODEL_PATH: &str = "x-model-path";

/// The structural schema of `T`, with the keywords that only this crate knows.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.with_transform(RecursiveTransform(make_structural)).into_generator().into_root_schema_for::<T>().to_value()
}

/// The structural schema of a PipelineJob, without the rules that `super::rules` adds.
pub(super) fn schema() -> Value {
    let mut schema = documented();
    // The API server has its own schema of metadata. The name is here because rules read it.
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    schema["required"] = json!(["spec"]);
    without_own_keywords(&mut schema);
    schema
}

/// The schema for documentation, with the metadata that a job file may have, and the keywords that only this crate
/// knows.
pub(super) fn documented() -> Value {
    let mut schema = schema_of::<PipelineJob>();
    if let Value::Object(template) = &mut schema["properties"]["spec"]["properties"]["template"] {
        template.remove("x-kubernetes-preserve-unknown-fields");
        template.extend(pod_template());
        let stages = stage_overrides(&template["properties"]["metadata"]["properties"]);
        template["properties"]["stages"] = stages;
    }
    without_defaults(&mut schema["properties"]["status"]);
    schema
}

fn pod_template() -> Map<String, Value> {
    serde_json::from_str(POD_TEMPLATE).unwrap_or_default()
}

/// The overrides of the template for single stages. The API server checks a pod's spec when the pod is created: a
/// second schema of the spec would double the CRD.
fn stage_overrides(metadata: &Value) -> Value {
    let metadata = json!({"labels": metadata["labels"], "annotations": metadata["annotations"]});
    json!({
        "description": "What single stages have otherwise: objects are merged, lists by the names of their items, null removes.",
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["stage"],
        "items": {
            "type": "object",
            "required": ["stage"],
            "properties": {
                "stage": {"type": "integer", "format": "int64", "minimum": 0, "description": "The stage."},
                "metadata": {"type": "object", "properties": metadata, "description": "Labels and annotations."},
                "spec": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "description": "Fields of the pod's spec.",
                },
            },
        },
    })
}

/// Removes or replaces the keywords that a structural schema must not have.
fn make_structural(schema: &mut Schema) {
    for key in ["$schema", "components", "title"] {
        schema.remove(key);
    }
    // A null equals an absent field: the API server drops the null, and sets the default if the field has one.
    schema.remove("nullable");
    // The API server refuses or drops an unlisted field anyway.
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    optional(schema);
    string_choice(schema);
    whole_numbers(schema);
}

/// A field that may be null has the schema of its value.
fn optional(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.remove("anyOf") else { return };
    for choice in choices {
        if let Value::Object(choice) = choice
            && choice.get("enum") != Some(&json!([null]))
        {
            let described = schema.get("description").is_some();
            schema.ensure_object().extend(choice.into_iter().filter(|(key, _)| !(described && key == "description")));
        }
    }
}

/// A choice of strings, each with its description, becomes an `enum` whose description lists them.
fn string_choice(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.remove("oneOf") else { return };
    let text = |choice: &Value, key: &str| choice[key].as_str().unwrap_or_default().to_owned();
    let mut description = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut names = Vec::new();
    for choice in &choices {
        let name = choice["enum"][0].as_str().unwrap_or_default();
        description.push_str(&format!("\n- {name}: {}", text(choice, "description")));
        names.push(json!(name));
    }
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), names.into());
    schema.insert("description".into(), description.into());
}

/// Kubernetes has signed integers of 32 and 64 bits. An unsigned integer becomes an `int64` with bounds. A number that
/// does not fit into 64 bits is no integer for Kubernetes.
fn whole_numbers(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default().to_owned();
    if format == "uint32" && schema.get("maximum").is_none() {
        schema.insert("maximum".into(), u32::MAX.into());
    }
    if format.starts_with("uint") {
        schema.insert("format".into(), "int64".into());
    }
}

fn without_own_keywords(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, _| ![EXPECTED, VOLUME_PATH, SOURCE_PATH, MODEL_PATH].contains(&key.as_str()));
            fields.values_mut().for_each(without_own_keywords);
        }
        Value::Array(items) => items.iter_mut().for_each(without_own_keywords),
        _ => {}
    }
}

/// Removes all defaults: a status reports observations, so the API server must not fill in any field.
fn without_defaults(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    schema.remove("default");
    for below in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        without_defaults(below);
    }
    if let Some(items) = schema.get_mut("items") {
        without_defaults(items);
    }
}
