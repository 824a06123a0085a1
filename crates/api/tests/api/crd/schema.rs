//! Reads a structural schema: its constraints, the constraints that a value breaks, and the smallest accepted value.

use serde_json::{Value, json};

/// One constraint of a schema: its path (`spec.data.paths[]`) and its kind (`minimum`, `required path`, or `typo`,
/// which refuses unknown fields).
pub(super) type SchemaConstraint = (String, String);

/// The keywords that bound a number, a text or a list.
pub(super) const BOUNDS: [&str; 7] =
    ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"];

/// Returns the schema of the CRD.
pub(super) fn root() -> Value {
    let crd = stagecoach_api::crd::custom_resource_definition();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `visit` for a schema and all schemas below it, with their paths.
pub(super) fn walk<'a>(schema: &'a Value, path: &str, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(path, schema);
    for (name, below) in properties(schema) {
        walk(below, &under(path, name), visit);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(key) {
            walk(below, &format!("{path}{}", brackets(key)), visit);
        }
    }
}

/// Calls `visit` for a value and all values below it, with their schemas, and with the paths of schema and value.
pub(super) fn walk_value<'a>(
    schema: &'a Value,
    value: &'a Value,
    [path, at]: [&str; 2],
    visit: &mut impl FnMut(&'a Value, &'a Value, [&str; 2]),
) {
    visit(schema, value, [path, at]);
    for (name, below) in properties(schema) {
        if let Some(value) = value.get(name) {
            walk_value(below, value, [&under(path, name), &under(at, name)], visit);
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        walk_value(&schema["items"], item, [&format!("{path}[]"), &format!("{at}[{index}]")], visit);
    }
}

/// Returns the fields of an object's schema.
pub(super) fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// Returns the path of a field.
pub(super) fn under(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

fn brackets(key: &str) -> &'static str {
    if key == "items" { "[]" } else { "{}" }
}

fn strings(schema: &Value, key: &str) -> Vec<String> {
    schema[key].as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Returns all constraints of a schema except types and rules.
pub(super) fn constraints(schema: &Value) -> Vec<SchemaConstraint> {
    let mut found = Vec::new();
    walk(schema, "", &mut |path, schema| {
        let mut add = |what: &str| found.push((path.to_owned(), what.to_owned()));
        if schema.get("properties").is_some() {
            add("typo");
        }
        strings(schema, "required").iter().for_each(|name| add(&format!("required {name}")));
        BOUNDS.into_iter().chain(["enum"]).filter(|key| schema.get(*key).is_some()).for_each(&mut add);
        if schema["format"] == "date-time" {
            add("date-time");
        }
        if ["map", "set"].iter().any(|kind| schema["x-kubernetes-list-type"] == **kind) {
            add("duplicate");
        }
    });
    found
}

/// Returns the constraints that a value breaks, except bounds. A value of a wrong type breaks the constraint `type`.
pub(super) fn violated_constraints(schema: &Value, value: &Value) -> Vec<SchemaConstraint> {
    let mut found = Vec::new();
    check(schema, value, "", &mut found);
    found
}

fn check(schema: &Value, value: &Value, path: &str, found: &mut Vec<SchemaConstraint>) {
    let mut add = |what: &str| found.push((path.to_owned(), what.to_owned()));
    let is_of_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0 && number < 9e15)
        }
        Some("number") => value.is_number(),
        _ => value.is_i64() || value.is_string(),
    };
    if !is_of_type {
        return add("type");
    }
    if schema.get("enum").is_some_and(|words| !words.as_array().unwrap().contains(value)) {
        add("enum");
    }
    if schema["format"] == "date-time" && !value.as_str().unwrap().ends_with('Z') {
        add("date-time");
    }
    for name in strings(schema, "required").iter().filter(|name| value.get(name.as_str()).is_none()) {
        add(&format!("required {name}"));
    }
    if let Some(items) = value.as_array() {
        let keys = strings(schema, "x-kubernetes-list-map-keys");
        let key = |item: &Value| {
            if keys.is_empty() { item.clone() } else { keys.iter().map(|key| item[key].clone()).collect() }
        };
        let is_unique = schema.get("x-kubernetes-list-type").is_some_and(|kind| kind != "atomic");
        if is_unique && (1..items.len()).any(|at| items[..at].iter().any(|earlier| key(earlier) == key(&items[at]))) {
            add("duplicate");
        }
    }
    // the API server itself checks labels and annotations, which the schema does not list
    let is_listed = |name: &str| path == "metadata" && ["labels", "annotations"].contains(&name);
    for (name, below) in value.as_object().into_iter().flatten() {
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => check(schema, below, &under(path, name), found),
            (None, Some(schema)) => check(schema, below, &format!("{path}{{}}"), found),
            (None, None) if is_listed(name) || schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            (None, None) => found.push((path.to_owned(), "typo".into())),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(&schema["items"], item, &format!("{path}[]"), found);
    }
}

/// Sets defaults like the API server: an absent field gets its default, and then the absent fields of this default get
/// their defaults.
pub(super) fn apply_defaults(schema: &Value, value: &mut Value) {
    for (name, below) in properties(schema) {
        if let (Some(object), Some(default)) = (value.as_object_mut(), below.get("default"))
            && !object.contains_key(name)
        {
            object.insert(name.clone(), default.clone());
        }
        if let Some(value) = value.get_mut(name) {
            apply_defaults(below, value);
        }
    }
    if let Some(items) = schema.get("items") {
        value.as_array_mut().into_iter().flatten().for_each(|item| apply_defaults(items, item));
    }
}

/// Returns the smallest value that a schema accepts.
pub(super) fn sample(schema: &Value) -> Value {
    if let Some(words) = schema.get("enum") {
        return words[0].clone();
    }
    match schema["type"].as_str() {
        Some("object") => {
            strings(schema, "required").iter().map(|name| (name.clone(), sample(&schema["properties"][name]))).collect()
        }
        Some("array") => json!([]),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-02T03:04:05Z"),
        Some("string") => json!("x"),
        Some("boolean") => json!(true),
        _ => json!(1),
    }
}
