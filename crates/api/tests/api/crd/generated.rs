//! Generates rows for the uniform parts of the schema, one for each constraint. A row is a manifest that breaks the
//! constraint. The uniform parts are the pod template, whose schema comes from Kubernetes; the status, which only the
//! operator writes; and the bounds of all other fields of the spec.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rows::{Row, job, put};
use super::schema::{self, BOUNDS, SchemaConstraint};

/// Returns one row for every constraint below `spec.template` and `status`, and for every bound of the other fields.
pub(super) fn rows() -> Vec<Row> {
    let root = schema::root();
    let mut rows = bounds();
    for (path, pointer) in [("spec.template", "/properties/spec/properties/template"), ("status", "/properties/status")]
    {
        let mut minimal = job("minimal");
        let add_row = |value: Value, constraint: SchemaConstraint, server: String| {
            put(&mut minimal, path, Some(value));
            let why = "only an API server reads this part field by field".to_owned();
            rows.push(Row { why: Some(why), ..row(minimal.clone(), path, constraint, server) });
        };
        Breaker { add_row }.everything_in(root.pointer(pointer).unwrap(), path, path, &|value| value);
    }
    rows
}

fn row(manifest: Value, changed: &str, breaks: SchemaConstraint, server: String) -> Row {
    let (changed, breaks, server) = (vec![changed.to_owned()], Some(breaks), Some(server));
    Row { manifest, changed, parse: None, validate: None, server, why: None, breaks }
}

/// Returns one row for every bound of the spec outside the template. The manifest of a row has a value that is just out
/// of bounds.
pub(super) fn bounds() -> Vec<Row> {
    let root = schema::root();
    let mut pretrained = job("minimal");
    put(&mut pretrained, "spec.model", Some(json!({"type": "Pretrained", "pretrained": {"path": "a"}})));
    let (mut rows, mut known) = (Vec::new(), BTreeSet::new());
    // with their defaults, these jobs together have every field
    for mut manifest in [job("full"), job("minimal"), job("mixture"), pretrained] {
        schema::apply_defaults(&root, &mut manifest);
        let spec = &manifest["spec"];
        schema::walk_value(&root["properties"]["spec"], spec, ["spec", "spec"], &mut |schema, value, [path, at]| {
            for key in BOUNDS.iter().filter(|key| !path.starts_with("spec.template") && schema.get(**key).is_some()) {
                let constraint = (path.to_owned(), (*key).to_owned());
                if known.insert(constraint.clone()) {
                    let mut manifest = manifest.clone();
                    let (outside, words) = outside(schema, key, value);
                    put(&mut manifest, at, Some(outside));
                    rows.push(row(manifest, at, constraint, format!("{at}: {words}")));
                }
            }
        });
    }
    rows
}

/// Returns a value just outside a bound, made from the value `inside`, and the API server's message about it.
fn outside(schema: &Value, key: &str, inside: &Value) -> (Value, String) {
    let bound = &schema[key];
    let size = || bound.as_u64().unwrap() as usize;
    let beyond = |by: i64| match schema["type"] == "number" {
        true => json!(bound.as_f64().unwrap() + by as f64),
        false => json!(bound.as_i64().unwrap() + by),
    };
    let in_body = |words: &str| format!("Invalid value: … in body {words}");
    match key {
        "minimum" if schema["exclusiveMinimum"] == true => (bound.clone(), in_body("should be greater than")),
        "maximum" if schema["exclusiveMaximum"] == true => (bound.clone(), in_body("should be less than")),
        "minimum" => (beyond(-1), in_body("should be greater than or equal to")),
        "maximum" => (beyond(1), in_body("should be less than or equal to")),
        "minLength" => (json!(""), in_body("should be at least 1 chars long")),
        "maxLength" => (json!("1".repeat(size() + 1)), format!("Too long: may not be more than {bound} bytes")),
        "minItems" => (json!([]), in_body("should have at least 1 items")),
        "maxItems" => {
            let items = vec![inside[0].clone(); size() + 1];
            (items.into(), format!("Too many: {}: must have at most {bound} items", size() + 1))
        }
        _ => (json!("no such word"), in_body("should match")),
    }
}

/// Breaks one constraint at a time, and calls `add_row` with the resulting value and the expected refusal.
struct Breaker<F> {
    add_row: F,
}

impl<F: FnMut(Value, SchemaConstraint, String)> Breaker<F> {
    /// Breaks every constraint of `schema`, one at a time. `path` is the schema's path, and `at` is the value's path.
    /// `within` puts a value of this schema into the whole value.
    fn everything_in(&mut self, schema: &Value, path: &str, at: &str, within: &dyn Fn(Value) -> Value) {
        for (_, constraint) in schema::constraints(schema).into_iter().filter(|(path, _)| path.is_empty()) {
            let (value, words) = violating_value(schema, &constraint, at);
            (self.add_row)(within(value), (path.to_owned(), constraint), words);
        }
        let sample = schema::sample(schema);
        for (name, below) in schema::properties(schema) {
            let in_object = |value| {
                let mut object = sample.clone();
                object[name] = value;
                within(object)
            };
            self.everything_in(below, &schema::under(path, name), &schema::under(at, name), &in_object);
        }
        if let Some(items) = schema.get("items") {
            self.everything_in(items, &format!("{path}[]"), &format!("{at}[0]"), &|value| within(json!([value])));
        }
        if let Some(values) = schema.get("additionalProperties") {
            self.everything_in(values, &format!("{path}{{}}"), &format!("{at}.key"), &|value| {
                within(json!({"key": value}))
            });
        }
    }
}

/// Returns a value that breaks this constraint and no other one, and the API server's message about it.
fn violating_value(schema: &Value, constraint: &str, at: &str) -> (Value, String) {
    let mut sample = schema::sample(schema);
    match constraint.split_once(' ').unwrap_or((constraint, "")) {
        ("typo", _) => {
            sample["typo"] = json!(1);
            (sample, format!("unknown field \"{at}.typo\""))
        }
        ("required", name) => {
            sample.as_object_mut().unwrap().remove(name);
            (sample, format!("{at}.{name}: Required value"))
        }
        ("enum", _) => (json!("Nonsense"), format!("{at}: Unsupported value: \"Nonsense\"")),
        ("date-time", _) => (json!("yesterday"), format!("{at}: Invalid value: … in body must be of type date-time")),
        ("duplicate", _) => {
            let item = schema::sample(&schema["items"]);
            (json!([item, item]), format!("{at}[1]: Duplicate value"))
        }
        (key, _) => {
            let (value, words) = outside(schema, key, &sample);
            (value, format!("{at}: {words}"))
        }
    }
}
