//! Specs that another version of Stagecoach writes or reads. The CRD of a newer version fills in defaults of fields
//! that an older operator lacks, so reading drops unknown fields. An older trainer refuses fields that only a newer
//! operator has, so writing omits fields that have their default. Neither omission changes the meaning of a spec,
//! because a default never changes within an API version.
//!
//! Writing keeps the items of a list unchanged. The operator hashes the JSON, and an earlier version hashed every field
//! of an item. A new field of an item must therefore use `skip_serializing_if`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::crd::SPEC_SCHEMA;
use crate::job::{PipelineJob, PipelineJobSpec};

/// A spec as the API server stores it, which may have been written for another version.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSpec {
    /// The fields that this version has.
    pub spec: PipelineJobSpec,
    /// The paths of the fields that this version lacks.
    pub unknown_fields: Vec<String>,
}

impl StoredSpec {
    /// Reads a spec from JSON, and drops the fields that this version lacks.
    ///
    /// # Errors
    /// A field that is missing, or has a value that this version can't read.
    pub fn from_json(spec: &str) -> serde_json::Result<StoredSpec> {
        // most specs have no unknown field
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
    /// Returns the spec as JSON without the fields that have their default, except in the items of lists. Any version
    /// reads the same spec from it, even an older version that lacks these fields.
    pub fn without_defaults(&self) -> Value {
        let mut spec = self.clone();
        // The default number of chunks depends on the schedule. In earlier versions the default is always 1, so this
        // function omits only 1.
        spec.pipeline.virtual_stages = Some(spec.pipeline.virtual_stages()).filter(|chunks| *chunks != 1);
        // An elastic job has its number of replicas in `elastic.maxDataParallel`.
        spec.data_parallel = if spec.elastic.is_some() { 1 } else { spec.data_parallel };
        // The default fraction depends on the other fields, so the schema does not contain it. This function omits a
        // fraction that equals the default.
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
    /// Returns the job as JSON without the fields of its spec that have their default.
    pub fn without_defaults(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["spec"] = self.spec.without_defaults();
        value
    }
}

/// The parts of a value's schema that this module needs.
#[derive(Debug, Default)]
struct Node {
    default: Option<Value>,
    /// The fields of an object. Empty for an object that is kept unchanged.
    fields: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
}

static SPEC: LazyLock<Node> = LazyLock::new(|| Node::from_schema(&SPEC_SCHEMA));

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

/// Removes the fields that have their default. An object is removed too if its remaining fields equal its default. The
/// items of a list stay unchanged.
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
