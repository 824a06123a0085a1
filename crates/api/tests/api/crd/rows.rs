//! Reads the tables in `crates/api/tests/data`: manifests and changes of manifests, with parts of the messages that
//! refuse them.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A manifest, and parts of the messages that refuse it. A message is `None` if its check accepts the manifest.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The whole object.
    pub(super) manifest: Value,
    /// The fields that the row changes.
    pub(super) changed: Vec<String>,
    /// A part of the error of `parse`.
    pub(super) parse: Option<String>,
    /// A part of the error of `validate`.
    pub(super) validate: Option<String>,
    /// A part of the API server's message.
    pub(super) server: Option<String>,
    /// The reason why only Rust or only the API server refuses the manifest.
    pub(super) why: Option<String>,
    /// The path and the kind of the constraint that a generated row breaks. `None` for a row of a table.
    pub(super) breaks: Option<(String, String)>,
}

/// A change of an existing job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Transition {
    /// Fields with which the job is created.
    pub(super) before: Map<String, Value>,
    /// The job's status.
    pub(super) status: Option<Value>,
    /// Fields that change.
    pub(super) set: Map<String, Value>,
    /// A part of the message of the refusal. `None` if the change is accepted.
    pub(super) refused: Option<String>,
}

/// An entry of a table. The entry changes the job `job` of `crates/api/tests/jobs`, or the minimal job.
#[derive(Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    job: Option<String>,
    set: Map<String, Value>,
    remove: Vec<String>,
    each: Vec<String>,
    value: Option<Value>,
    times: Option<usize>,
    parse: Option<String>,
    validate: Option<String>,
    server: Option<String>,
    why: Option<String>,
}

/// Returns the rows of all three tables. An entry with `each` becomes one row for each field that `each` lists. The row
/// sets this field to `value`. If `times` is given, the row repeats the text `value`, or the first item of the list
/// `value`, that many times.
pub(super) fn rows() -> Vec<Row> {
    let tables = [
        include_str!("../../data/refused-by-schema.yaml"),
        include_str!("../../data/refused-by-rules.yaml"),
        include_str!("../../data/accepted.yaml"),
    ];
    let written = |table: &str| serde_saphyr::from_str::<Vec<Written>>(table).unwrap();
    tables.into_iter().flat_map(written).flat_map(|row| expand(&row)).collect()
}

/// Returns all rows of `transitions.yaml`.
pub(super) fn transitions() -> Vec<Transition> {
    serde_saphyr::from_str(include_str!("../../data/transitions.yaml")).unwrap()
}

/// Returns a job of `crates/api/tests/jobs` as a user creates it, without the fields that only an API server writes.
pub(super) fn job(name: &str) -> Value {
    let text = match name {
        "minimal" => include_str!("../../jobs/minimal.yaml"),
        "full" => include_str!("../../jobs/full.yaml"),
        "mixture" => include_str!("../../jobs/mixture.yaml"),
        "custom" => include_str!("../../jobs/custom.yaml"),
        other => panic!("there is no job called {other}"),
    };
    let mut job: Value = serde_saphyr::from_str(text).unwrap();
    let metadata = job["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| ["name", "labels", "annotations"].contains(&field.as_str()));
    job.as_object_mut().unwrap().remove("status");
    job
}

fn expand(written: &Written) -> Vec<Row> {
    let mut manifest = job(written.job.as_deref().unwrap_or("minimal"));
    for (path, value) in &written.set {
        put(&mut manifest, path, Some(value.clone()));
    }
    for path in &written.remove {
        put(&mut manifest, path, None);
    }
    let row = |manifest: Value, path: &str, changed: Vec<String>| {
        let words = |text: &Option<String>| text.as_ref().map(|text| text.replace("{path}", path));
        let (parse, validate, server) = (words(&written.parse), words(&written.validate), words(&written.server));
        Row { manifest, changed, parse, validate, server, why: written.why.clone(), breaks: None }
    };
    if written.each.is_empty() {
        return vec![row(manifest, "", written.set.keys().chain(&written.remove).cloned().collect())];
    }
    let value = written.value.as_ref().map(|value| match (value, written.times) {
        (Value::String(text), Some(times)) => text.repeat(times).into(),
        (Value::Array(items), Some(times)) => vec![items[0].clone(); times].into(),
        (value, _) => value.clone(),
    });
    let one = |path: &String| {
        let mut manifest = manifest.clone();
        put(&mut manifest, path, value.clone());
        row(manifest, path, vec![path.clone()])
    };
    written.each.iter().map(one).collect()
}

/// Sets or removes the field at a path such as `spec.data.paths[0]`. The function creates missing objects on the path.
pub(super) fn put(root: &mut Value, path: &str, value: Option<Value>) {
    let pointer = path.replace('[', ".").replace(']', "");
    let (parents, last) = pointer.rsplit_once('.').unwrap_or(("", &pointer));
    let mut node = root;
    for segment in parents.split('.').filter(|segment| !segment.is_empty()) {
        node = match segment.parse::<usize>() {
            Ok(index) => &mut node[index],
            Err(_) => &mut node[segment],
        };
    }
    match (last.parse::<usize>(), value) {
        (Ok(index), Some(value)) => node[index] = value,
        (Ok(index), None) => drop(node.as_array_mut().unwrap().remove(index)),
        (Err(_), Some(value)) => node[last] = value,
        (Err(_), None) => drop(node.as_object_mut().unwrap().remove(last).expect(path)),
    }
}

/// Whether `text` contains, in order, the parts of `words` that ellipses separate.
pub(super) fn says(text: &str, words: &str) -> bool {
    let mut rest = text;
    words.split('…').map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}
