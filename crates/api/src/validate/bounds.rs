//! Checks the bounds that the schema sets for numbers, texts and lists. The API server checks the same bounds. The
//! types of `job` check the schema's other keywords when serde reads a job.

use serde_json::Value;

use super::{Problems, names};
use crate::crd::{Bounds, EXPECTED, MODEL_PATH, SOURCE_PATH, SPEC_SCHEMA, VOLUME_PATH};
use crate::job::PipelineJobSpec;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    walk(&SPEC_SCHEMA, &spec, "spec", problems);
}

/// Checks a value and everything below it.
fn walk(schema: &Value, value: &Value, path: &str, problems: &mut Problems) {
    let expected = |otherwise: String| schema[EXPECTED].as_str().map_or(otherwise, str::to_owned);
    let size = |key: &str| schema[key].as_u64();
    match value {
        Value::Number(number) => {
            let bounds = Bounds::of(schema);
            problems.require(bounds.hold(number), path, || match number.as_f64().filter(|_| number.is_f64()) {
                Some(found) => format!("is {found}; {}", expected(bounds.to_string())),
                None => format!("is {number}; {}", expected(bounds.to_string())),
            });
            let fits = number.is_f64() || number.is_i64();
            problems.require(fits, path, || format!("is {number}; the largest is {}", i64::MAX));
        }
        // A null stands for infinity or NaN: serde_json writes these numbers as null, and omits absent fields.
        Value::Null => problems.require(schema["type"] != "number", path, || {
            format!("is infinite or not a number; {}", expected(Bounds::of(schema).to_string()))
        }),
        Value::String(text) => {
            let characters = text.chars().count() as u64;
            problems.require(size("minLength").is_none_or(|least| characters >= least), path, || {
                format!("is empty: {}", expected("give at least one character".into()))
            });
            problems.require(size("maxLength").is_none_or(|most| characters <= most), path, || {
                format!("has {characters} characters; at most {} are possible", schema["maxLength"])
            });
            if schema[VOLUME_PATH] == true {
                names::volume_path(text, path, problems);
            }
            if schema[SOURCE_PATH] == true {
                names::source_path(text, path, problems);
            }
            if schema[MODEL_PATH] == true {
                names::model_path(text, path, problems);
            }
        }
        Value::Array(items) => {
            let count = items.len() as u64;
            problems.require(size("minItems").is_none_or(|least| count >= least), path, || {
                format!("is empty: {}", expected("give at least one item".into()))
            });
            problems.require(size("maxItems").is_none_or(|most| count <= most), path, || {
                format!("has {count} items; at most {} are possible", schema["maxItems"])
            });
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), problems);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                walk(&schema["properties"][name], value, &format!("{path}.{name}"), problems);
            }
        }
        Value::Bool(_) => {}
    }
}
