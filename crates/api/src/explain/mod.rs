//! The documentation of every field, read from the schema: the output of `kubectl explain`, and the other facts in the
//! schema, such as defaults, limits, and the messages of refusals.

mod find;
mod limits;

pub use find::UnknownField;

use serde_json::Value;

use crate::crd::documented_schema;
use crate::job::{ChangeEffect, change_effect};

/// A field of a PipelineJob and all fields below it.
#[derive(Clone, Debug)]
pub struct Field {
    /// The path, such as `spec.restart.exitCodes.codes`. Lists add no part for their items. Empty for the PipelineJob
    /// itself.
    pub path: String,
    /// The type as kubectl writes it: `string`, `[]string`, `map[string]string`, `Object`.
    pub kind: String,
    /// Whether an object without the field is refused.
    pub is_required: bool,
    /// The description, with one paragraph per line. For a choice, each value has a paragraph that begins with `- `.
    pub description: String,
    /// The values that a string may have; empty if any value is allowed.
    pub choices: Vec<String>,
    /// The default of the field, as a job file would write it. `None` if the field has no default.
    pub default: Option<String>,
    /// The range of a number, and the length of a text or list.
    pub limits: Vec<String>,
    /// The messages with which validation rules refuse a value.
    pub refusals: Vec<String>,
    /// The effect of a change of the field on an existing job. `None` for a field outside `spec`, and for an object
    /// whose fields have different effects.
    pub change: Option<ChangeEffect>,
    /// The fields of the object, or of each item or value, in the order of a job file.
    pub fields: Vec<Field>,
}

impl Field {
    /// Returns the PipelineJob with all its fields.
    pub fn pipeline_job() -> Self {
        Self::read(&documented_schema(), String::new(), false, &mut Vec::new())
    }

    /// Returns the last part of the path.
    pub fn name(&self) -> &str {
        name(&self.path)
    }

    /// Iterates over the field and all fields below it. An object comes before its fields.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        let mut next = vec![self];
        std::iter::from_fn(move || {
            let field = next.pop()?;
            next.extend(field.fields.iter().rev());
            Some(field)
        })
    }

    /// Reads the field with this schema, and the fields below it. `refusals` already has the rules of the enclosing
    /// objects, because such a rule may be about this field. The function adds the rules of `schema`.
    fn read(schema: &Value, path: String, is_required: bool, refusals: &mut Vec<RuleSentence>) -> Self {
        let content = content(schema);
        refusals.extend(RuleSentence::of(schema, &path, name(&path)));
        if let Some(items) = schema.get("items") {
            refusals.extend(RuleSentence::of(items, &path, &format!("an item of {}", name(&path))));
        }
        let fields = properties(content).map(|(name, below)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let is_required = array(&content["required"]).any(|required| required == name);
            Self::read(below, path, is_required, refusals)
        });
        let fields = fields.collect();
        let field_refusals = refusals.iter().filter(|refusal| refusal.path == path);
        Self {
            kind: kind(schema),
            is_required,
            description: description(schema, &path),
            choices: array(&content["enum"]).filter_map(Value::as_str).map(str::to_owned).collect(),
            default: schema.get("default").map(yaml),
            limits: limits::limits(schema),
            refusals: field_refusals.map(|refusal| refusal.sentence.clone()).collect(),
            change: path.strip_prefix("spec.").and_then(change_effect),
            fields,
            path,
        }
    }
}

fn name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Returns the schema of the values in a list or map. For nested lists and maps, returns the schema of the innermost
/// values. Returns any other schema itself.
fn content(schema: &Value) -> &Value {
    inside(schema).map_or(schema, content)
}

/// Returns the schema of the items of a list, or of the values of a map. `None` for any other schema.
fn inside(schema: &Value) -> Option<&Value> {
    schema.get("items").or_else(|| schema.get("additionalProperties"))
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn kind(schema: &Value) -> String {
    match (inside(schema), schema["type"].as_str()) {
        (Some(inside), Some("array")) => format!("[]{}", kind(inside)),
        (Some(inside), _) => format!("map[string]{}", kind(inside)),
        (None, Some("object")) => "Object".into(),
        (None, Some(other)) => other.into(),
        (None, None) => "IntOrString".into(),
    }
}

/// Formats a value as YAML in one line.
fn yaml(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Object(fields) => {
            format!("{{{}}}", list(fields.iter().map(|(name, value)| format!("{name}: {}", yaml(value))).collect()))
        }
        Value::Array(items) => format!("[{}]", list(items.iter().map(yaml).collect())),
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the descriptions of a field and of its items. The CRD does not describe the fields of a pod, so this
/// function refers to `kubectl explain pod` for them.
fn description(schema: &Value, path: &str) -> String {
    let own = [schema].into_iter().chain(inside(schema).map(content));
    let texts: Vec<String> = own.filter_map(|schema| schema["description"].as_str()).map(paragraphs).collect();
    if !texts.is_empty() {
        return texts.join("\n");
    }
    let pod_path = ["spec.template.stages.", "spec.template.", ""].into_iter().find_map(|base| path.strip_prefix(base));
    format!("A field of Kubernetes' pod template: `kubectl explain pod.{}` describes it.", pod_path.unwrap_or(path))
}

/// Joins the lines of each paragraph, because the lines of a doc comment are wrapped at the width of source code.
fn paragraphs(text: &str) -> String {
    text.split("\n- ").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n- ")
}

/// The message of a validation rule about a field.
struct RuleSentence {
    path: String,
    sentence: String,
}

impl RuleSentence {
    /// Returns the messages of the rules of the schema at `path`. `subject` names the value in a message. The rule
    /// whose message is an expression is omitted, because that rule is about changes, which [`Field::change`]
    /// describes.
    fn of(schema: &Value, path: &str, subject: &str) -> Vec<Self> {
        let rules = array(&schema["x-kubernetes-validations"]);
        let refusals = rules.filter_map(|rule| {
            let message = rule["message"].as_str()?;
            let below = rule["fieldPath"].as_str().unwrap_or_default();
            let path = format!("{path}{below}").trim_start_matches('.').to_owned();
            let subject = if below.is_empty() { subject } else { name(&path) };
            // A message that is a whole sentence begins with a backtick. Any other message is a sentence without its
            // subject.
            let is_whole = message.starts_with('`');
            let sentence = if is_whole { message.to_owned() } else { format!("{subject} {message}") };
            Some(Self { path, sentence })
        });
        refusals.collect()
    }
}
