//! The schema of a PipelineJob in the form that Kubernetes calls structural: every value has one type, there are no
//! references, and a choice of strings is an `enum`.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::{PipelineJob, PipelineJobSpec};

/// The schema of a pod's template; `scripts/pod_template.py` writes it.
const POD_TEMPLATE: &str = include_str!("pod_template.json");

/// The keyword whose value is the end of a refusal's message: the range of a number, or the remedy for an empty text or
/// list.
pub(crate) const EXPECTED: &str = "x-expected";
/// The keyword that marks a path on the volume.
pub(crate) const VOLUME_PATH: &str = "x-volume-path";
/// The keyword that marks a path on the volume or the URI of corpus files.
pub(crate) const SOURCE_PATH: &str = "x-source-path";
/// The keyword that marks a path on the volume or the URI of a model.
pub(crate) const MODEL_PATH: &str = "x-model-path";

/// The structural schema of a spec, with the additional keywords of this crate.
pub(crate) static SPEC_SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<PipelineJobSpec>);

/// Returns the structural schema of `T`, with the additional keywords of this crate.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.with_transform(RecursiveTransform(make_structural)).into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the structural schema of a PipelineJob, without the rules that `super::rules` adds.
pub(super) fn schema() -> Value {
    let mut schema = documented();
    // The API server adds its own schema of `metadata`. This schema lists the name because the rules read it.
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    schema["required"] = json!(["spec"]);
    remove_internal_keywords(&mut schema);
    schema
}

/// Returns the schema for documentation. It has the metadata that a job file may have, and the additional keywords of
/// this crate.
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

/// Returns the schema of `template.stages`, the overrides of the template for single stages. The pod spec of an
/// override has no schema, because a second copy would double the CRD. The API server checks the merged pod spec when
/// the operator creates the pod.
fn stage_overrides(metadata: &Value) -> Value {
    let metadata = json!({"labels": metadata["labels"], "annotations": metadata["annotations"]});
    json!({
        "description": "Overrides of the template for single stages. Objects are merged field by field. Lists are \
                        merged by the names of their items. A null value removes a field.",
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["stage"],
        "items": {
            "type": "object",
            "required": ["stage"],
            "properties": {
                "stage": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "The number of the stage, from 0. The override applies to it in each replica.",
                },
                "metadata": {
                    "type": "object",
                    "properties": metadata,
                    "description": "Labels and annotations that are merged into those of the template.",
                },
                "spec": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "description": "Fields of the pod's spec that are merged into the spec of the template.",
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
    // Without `nullable`, a null equals an absent field: the API server drops the null, and sets the default if the
    // field has one.
    schema.remove("nullable");
    // The API server itself refuses or drops a field that the schema does not list.
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    optional(schema);
    convert_string_enum(schema);
    convert_unsigned_integers(schema);
}

/// Replaces the `anyOf` of a nullable field with the schema of its non-null value.
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

/// Replaces the `oneOf` of described strings with an `enum` whose description lists the strings with their
/// descriptions.
fn convert_string_enum(schema: &mut Schema) {
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

/// Replaces the formats of unsigned integers. Kubernetes has only signed integers, of 32 and 64 bits, so an unsigned
/// integer becomes an `int64` with bounds. The API server refuses an integer that does not fit into 64 bits.
fn convert_unsigned_integers(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default().to_owned();
    if format == "uint32" && schema.get("maximum").is_none() {
        schema.insert("maximum".into(), u32::MAX.into());
    }
    if format.starts_with("uint") {
        schema.insert("format".into(), "int64".into());
    }
}

fn remove_internal_keywords(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, _| ![EXPECTED, VOLUME_PATH, SOURCE_PATH, MODEL_PATH].contains(&key.as_str()));
            fields.values_mut().for_each(remove_internal_keywords);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_internal_keywords),
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
