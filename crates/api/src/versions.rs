//! A spec between versions. Each version knows the fields of its own schema: a newer one's CRD fills in defaults that
//! an older operator does not know, and an older trainer refuses fields that a newer operator would write. So what is
//! unknown can be dropped from a stored spec, and what is at its default can be left out of a written one. Within an
//! API version a default never changes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::crd::schema_of;
use crate::job::{PipelineJob, PipelineJobSpec};

/// A spec as the API server stores it, which may have been written for another version.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSpec {
    /// The fields that this version knows.
    pub spec: PipelineJobSpec,
    /// The paths of the fields that this version does not know.
    pub unknown_fields: Vec<String>,
}

impl StoredSpec {
    /// Reads a spec in JSON, without the fields that this version does not know.
    ///
    /// # Errors
    /// A field that is missing, or has a value that this version can't read.
    pub fn from_json(spec: &str) -> serde_json::Result<StoredSpec> {
        // mostly all are known
        if let Ok(spec) = serde_json::from_str::<PipelineJobSpec>(spec) {
            return Ok(StoredSpec { spec: spec.with_elastic_replicas(), unknown_fields: Vec::new() });
        }
        let mut value = serde_json::from_str(spec)?;
        let mut unknown_fields = Vec::new();
        drop_unknown(&mut value, &SPEC, "spec", &mut unknown_fields);
        let spec: PipelineJobSpec = serde_json::from_value(value)?;
        Ok(StoredSpec { spec: spec.with_elastic_replicas(), unknown_fields })
    }
}

impl PipelineJobSpec {
    /// The spec as JSON without the fields that are at their default: reading it gives this spec again, also by an
    /// older version that does not have those fields yet.
    pub fn without_defaults(&self) -> Value {
        let mut spec = self.clone();
        // the number of chunks without one depends on the schedule; earlier versions always had one, with the default 1
        spec.pipeline.virtual_stages = Some(spec.pipeline.virtual_stages()).filter(|chunks| *chunks != 1);
        // an elastic job names its replicas in `elastic`
        spec.data_parallel = if spec.elastic.is_some() { 1 } else { spec.data_parallel };
        // the fraction without one depends on the other fields; earlier versions always had one, with the default 0.01
        if let Some(evaluation) = spec.data.as_mut().and_then(|data| data.evaluation.as_mut()) {
            let default = evaluation.default_fraction();
            evaluation.fraction = evaluation.fraction.filter(|fraction| *fraction != default);
        }
        let mut value = serde_json::to_value(&spec).unwrap_or_default();
        drop_defaults(&mut value, &SPEC);
        value
    }
}

impl PipelineJob {
    /// The job as JSON without the fields of its spec that are at their default.
    pub fn without_defaults(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["spec"] = self.spec.without_defaults();
        value
    }
}

/// The parts of a value's schema that matter here.
#[derive(Debug, Default)]
struct Node {
    default: Option<Value>,
    /// The fields of an object; none of one that is kept as it was written.
    fields: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
}

static SPEC: LazyLock<Node> = LazyLock::new(|| Node::from_schema(&schema_of::<PipelineJobSpec>()));

impl Node {
    fn from_schema(schema: &Value) -> Node {
        let properties = schema.get("properties").and_then(Value::as_object);
        let fields: BTreeMap<String, Node> =
            properties.into_iter().flatten().map(|(name, field)| (name.clone(), Node::from_schema(field))).collect();
        let items = schema.get("items").map(|items| Box::new(Node::from_schema(items)));
        let mut node = Node { default: None, fields, items };
        node.default = schema.get("default").cloned().map(|mut default| {
            drop_defaults(&mut default, &node);
            default
        });
        node
    }
}

/// An object whose fields are all left out is left out itself if that says the same.
fn drop_defaults(value: &mut Value, node: &Node) {
    let Value::Object(fields) = value else { return };
    fields.retain(|name, value| {
        let Some(field) = node.fields.get(name) else { return true };
        drop_defaults(value, field);
        field.default.as_ref() != Some(value)
    });
}

fn drop_unknown(value: &mut Value, node: &Node, path: &str, dropped: &mut Vec<String>) {
    match (value, &node.items) {
        (Value::Object(fields), _) if !node.fields.is_empty() => {
            let mut known = Map::new();
            for (name, mut value) in std::mem::take(fields) {
                let path = format!("{path}.{name}");
                match node.fields.get(&name) {
                    Some(field) => {
                        drop_unknown(&mut value, field, &path, dropped);
                        known.insert(name, value);
                    }
                    None => dropped.push(path),
                }
            }
            *fields = known;
        }
        (Value::Array(items), Some(node)) => {
            for (index, item) in items.iter_mut().enumerate() {
                drop_unknown(item, node, &format!("{path}[{index}]"), dropped);
            }
        }
        _ => {}
    }
}
