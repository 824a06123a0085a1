//! The schema of a PipelineJob in the form that Kubernetes calls structural: every value has one type, nothing is referred
//! to, and a word out of a list is an `enum`.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value, json};

use crate::PipelineJob;

/// What a pod's template holds; `scripts/pod_template.py` writes it.
const POD_TEMPLATE: &str = include_str!("pod_template.json");

/// The structural schema of a PipelineJob, without the rules that `super::rules` adds.
pub(super) fn schema() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let generated = settings
        .with_transform(RecursiveTransform(make_structural))
        .into_generator()
        .into_root_schema_for::<PipelineJob>();
    let mut schema = generated.to_value();
    // The API server knows what metadata is; the name is here for the rules that speak of it.
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    schema["required"] = json!(["spec"]);
    if let Value::Object(template) = &mut schema["properties"]["spec"]["properties"]["template"] {
        template.remove("x-kubernetes-preserve-unknown-fields");
        template.extend(pod_template());
    }
    without_defaults(&mut schema["properties"]["status"]);
    schema
}

fn pod_template() -> Map<String, Value> {
    serde_json::from_str(POD_TEMPLATE).unwrap_or_default()
}

/// Leaves out what a structural schema may not say, or says it in another way.
fn make_structural(schema: &mut Schema) {
    for key in ["$schema", "components", "title"] {
        schema.remove(key);
    }
    // A null is as good as nothing: the API server drops it, and fills in the default if there is one.
    schema.remove("nullable");
    // A field that isn't listed is refused or dropped anyway.
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    optional(schema);
    words(schema);
    whole_numbers(schema);
}

/// What may be null is only what it is.
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

/// A list of words, each with a sentence, becomes an `enum` and a description that tells what each stands for.
fn words(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.remove("oneOf") else { return };
    let text = |choice: &Value, key: &str| choice[key].as_str().unwrap_or_default().to_owned();
    let mut description = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut words = Vec::new();
    for choice in &choices {
        let word = choice["enum"][0].as_str().unwrap_or_default();
        description.push_str(&format!("\n- {word}: {}", text(choice, "description")));
        words.push(json!(word));
    }
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), words.into());
    schema.insert("description".into(), description.into());
}

/// Kubernetes knows whole numbers of 32 and 64 bits with a sign; those without one get bounds instead. One that is too
/// large for 64 bits is no whole number to it.
fn whole_numbers(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default().to_owned();
    if format == "uint32" && schema.get("maximum").is_none() {
        schema.insert("maximum".into(), u32::MAX.into());
    }
    if format.starts_with("uint") {
        schema.insert("format".into(), "int64".into());
    }
}

/// A status says what was found, so nothing is filled in.
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
