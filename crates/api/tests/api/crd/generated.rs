//! Rows for the long and uniform parts of the schema, one for each of their demands: the pod template, which comes from
//! Kubernetes, and the status, which only the operator writes.

use serde_json::{Value, json};

use super::rows::{Row, job, put};
use super::schema;

/// One row for every demand below `spec.template` and `status`.
pub(super) fn rows() -> Vec<Row> {
    let root = schema::root();
    let mut rows = Vec::new();
    for (path, pointer) in [("spec.template", "/properties/spec/properties/template"), ("status", "/properties/status")]
    {
        let mut minimal = job("minimal");
        let broken = |value: Value, server: String| {
            put(&mut minimal, path, Some(value));
            let why = "only an API server reads this part field by field".to_owned();
            let changed = vec![path.to_owned()];
            rows.push(Row {
                manifest: minimal.clone(),
                changed,
                parse: None,
                validate: None,
                server: Some(server),
                why: Some(why),
            });
        };
        Breaker { broken }.everything_in(root.pointer(pointer).unwrap(), path, &|value| value);
    }
    rows
}

/// Breaks one demand at a time, and passes on the value of the whole part with the expected words of its refusal.
struct Breaker<F> {
    broken: F,
}

impl<F: FnMut(Value, String)> Breaker<F> {
    /// `within` puts a value of this schema into the whole part.
    fn everything_in(&mut self, schema: &Value, at: &str, within: &dyn Fn(Value) -> Value) {
        for (_, demand) in schema::demands(schema).iter().filter(|(path, _)| path.is_empty()) {
            let (value, words) = broken(schema, demand, at);
            (self.broken)(within(value), words);
        }
        let sample = schema::sample(schema);
        for (name, below) in schema::properties(schema) {
            let in_object = |value| {
                let mut object = sample.clone();
                object[name] = value;
                within(object)
            };
            self.everything_in(below, &schema::under(at, name), &in_object);
        }
        if let Some(items) = schema.get("items") {
            self.everything_in(items, &format!("{at}[0]"), &|value| within(json!([value])));
        }
        if let Some(values) = schema.get("additionalProperties") {
            self.everything_in(values, &format!("{at}.key"), &|value| within(json!({"key": value})));
        }
    }
}

/// A value that breaks this demand and no other, and the API server's words about it.
fn broken(schema: &Value, demand: &str, at: &str) -> (Value, String) {
    let mut sample = schema::sample(schema);
    let number = |key: &str| schema[key].as_i64().unwrap();
    match demand.split_once(' ').unwrap_or((demand, "")) {
        ("typo", _) => {
            sample["typo"] = json!(1);
            (sample, format!("unknown field \"{at}.typo\""))
        }
        ("required", name) => {
            sample.as_object_mut().unwrap().remove(name);
            (sample, format!("{at}.{name}: Required value"))
        }
        ("enum", _) => (json!("Nonsense"), format!("{at}: Unsupported value: \"Nonsense\"")),
        ("minimum", _) => {
            (json!(number("minimum") - 1), format!("{at}: Invalid value: … in body should be greater than or equal to"))
        }
        ("maximum", _) => {
            (json!(number("maximum") + 1), format!("{at}: Invalid value: … in body should be less than or equal to"))
        }
        ("pattern", _) => (json!("4 GiB"), format!("{at}: Invalid value: … in body should match")),
        ("date-time", _) => (json!("yesterday"), format!("{at}: Invalid value: … in body must be of type date-time")),
        ("duplicate", _) => {
            let item = schema::sample(&schema["items"]);
            (json!([item, item]), format!("{at}[1]: Duplicate value"))
        }
        other => panic!("{at}: no value breaks {other:?} yet"),
    }
}
