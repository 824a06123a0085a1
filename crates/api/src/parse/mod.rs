//! Reads a job file in four steps, one in each module: `tree` parses the YAML and keeps the position of every value,
//! `overrides` applies `--set`, `decode` deserializes the tree with serde, and `error` reports a failure with its path
//! and position.

mod decode;
mod error;
mod overrides;
mod tree;

pub use error::{Location, ParseError};
pub(crate) use error::{list, nearest};

use crate::job::PipelineJob;
use error::{DecodeError, LocatedError};
use tree::{Value, YamlNode};

/// Reads a job file. `origin` names the file in errors: a file name, or `<stdin>`.
///
/// # Errors
/// The first error in the file: its line, its field, the value found and the values allowed.
pub fn parse(text: &str, origin: &str) -> Result<PipelineJob, ParseError> {
    parse_with(text, origin, &[])
}

/// Reads a job file and applies `--set path=value` pairs in their order. A path is `training.steps` or
/// `spec.training.steps`, with `paths.0` or `paths[0]` for an item of a list; the value is YAML.
///
/// # Errors
/// The errors of `parse`. If a faulty value comes from a `--set`, the error names this `--set` instead of a position in
/// the file.
pub fn parse_with(text: &str, origin: &str, overrides: &[(String, String)]) -> Result<PipelineJob, ParseError> {
    let locate = |error: LocatedError| error.locate(origin, overrides);
    let mut root = YamlNode::from_yaml(text).map_err(locate)?;
    check_kind(&root).map_err(locate)?;
    overrides::apply(&mut root, overrides).map_err(locate)?;
    let job: PipelineJob = decode::decode(&root).map_err(locate)?;
    Ok(PipelineJob { spec: job.spec.with_elastic_replicas(), ..job })
}

/// Checks whether the file is a PipelineJob. Without this check, the refusal of an object of another kind would name an
/// unknown field instead of the kind.
fn check_kind(root: &YamlNode) -> Result<(), LocatedError> {
    if !matches!(root.value, Value::Map(_)) {
        let expected = "a PipelineJob (apiVersion, kind, metadata, spec)".into();
        return Err(LocatedError::at(root.position, DecodeError::Type { found: root.value.describe(), expected }));
    }
    for (field, expected) in [("apiVersion", crate::job::API_VERSION), ("kind", crate::job::KIND)] {
        let Some((_, node)) = root.entry(field) else {
            let hint = Some(format!("`{field}: {expected}`"));
            return Err(LocatedError::at(root.position, DecodeError::Missing { field, hint }));
        };
        if !matches!(&node.value, Value::String(text) if text == expected) {
            let error = DecodeError::Value { found: node.value.describe(), allowed: vec![expected] };
            return Err(LocatedError::at(node.position, error).under(field));
        }
    }
    Ok(())
}

impl PipelineJob {
    /// Returns the job as YAML, which `parse` can read.
    ///
    /// # Errors
    /// The job has a number that YAML can't represent.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(self)
    }

    /// Returns the job as JSON, which `parse` can read, because JSON is YAML.
    ///
    /// # Errors
    /// The job has a number that JSON can't represent.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }
}
