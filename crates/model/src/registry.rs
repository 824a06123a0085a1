//! The registry of architectures. Outside of an architecture's folder, only this file refers to the architecture by
//! name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use stagecoach_api::job::{ModelSpec, PretrainedSpec};

use super::config_json::{self, ConfigJson};
use super::llama::{self, LlamaConfig};
use super::model_config::{ModelConfig, ModelFamily};

/// Returns the families of all architectures.
pub(crate) fn families() -> impl Iterator<Item = &'static dyn ModelFamily> {
    llama::FAMILIES.iter().map(|family| family as &dyn ModelFamily)
}

/// The model that a job specifies.
#[derive(Debug)]
pub enum SpecifiedModel<'a> {
    /// The job contains the configuration.
    Config(Arc<dyn ModelConfig>),
    /// The job names a model directory.
    Pretrained(&'a PretrainedSpec),
}

impl SpecifiedModel<'_> {
    /// Returns the model that `spec` specifies.
    pub fn of(spec: &ModelSpec) -> SpecifiedModel<'_> {
        match spec {
            ModelSpec::Llama(llama) => SpecifiedModel::Config(Arc::new(LlamaConfig::from_spec(llama))),
            ModelSpec::Pretrained(pretrained) => SpecifiedModel::Pretrained(pretrained),
        }
    }
}

/// Returns the values of `model_type` that this trainer reads.
pub fn model_types() -> Vec<&'static str> {
    families().map(ModelFamily::model_type).collect()
}

fn family(model_type: Option<&Value>) -> Option<&'static dyn ModelFamily> {
    families().find(|family| model_type.is_some_and(|name| name == family.model_type()))
}

/// Returns the content of a checkpoint's `config.json`: the kept fields of `source`, which is the pretrained model's
/// file, followed by the model's fields `own`.
pub fn with_kept_fields(source: Option<&Map<String, Value>>, own: Value) -> Value {
    match source.map(|source| (source, family(source.get("model_type")))) {
        Some((source, Some(family))) => config_json::with_kept_fields(source, own, family.keys()),
        _ => own,
    }
}

/// The reason why a model directory's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct ModelConfigError {
    /// The path of the file.
    path: PathBuf,
    /// The problem, such as the found and the expected value of a field.
    problem: String,
}

/// The configuration of a pretrained model, with all fields of its `config.json`.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The configuration as this trainer uses it.
    pub config: Arc<dyn ModelConfig>,
    /// All fields of the file, unchanged.
    pub fields: Map<String, Value>,
}

impl SourceConfig {
    /// Reads the `config.json` of a Hugging Face model directory. Absent fields have Hugging Face's defaults.
    ///
    /// # Errors
    /// If the file can't be read, or a field has a value that this trainer does not support.
    pub fn read(folder: &Path) -> Result<SourceConfig, ModelConfigError> {
        let path = folder.join("config.json");
        let read = || {
            let text = std::fs::read(&path).map_err(|e| format!("could not be read ({e})"))?;
            SourceConfig::parse(serde_json::from_slice(&text).map_err(|e| format!("is no JSON object: {e}"))?)
        };
        read().map_err(|problem| ModelConfigError { path: path.clone(), problem })
    }

    /// Parses the configuration in the `fields` of a `config.json`.
    ///
    /// # Errors
    /// If a field has a value that this trainer does not support.
    pub fn parse(fields: Map<String, Value>) -> Result<SourceConfig, String> {
        let json = ConfigJson(fields);
        let model_type = json.get("model_type");
        let Some(family) = family(model_type) else {
            let found = model_type.map_or("absent".to_owned(), Value::to_string);
            let names: Vec<String> = model_types().iter().map(|name| format!("\"{name}\"")).collect();
            return Err(format!("model_type is {found}, and this trainer supports only {}", names.join(", ")));
        };
        Ok(SourceConfig { config: family.read(&json)?, fields: json.0 })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_type_is_refused_with_the_known_ones() {
        let refusal = |model_type: Value| {
            SourceConfig::parse([("model_type".to_owned(), model_type)].into_iter().collect()).unwrap_err()
        };
        let expected = "model_type is \"resnet\", and this trainer supports only \"llama\", \"mistral\", \"qwen2\"";
        assert!(refusal(json!("resnet")).starts_with(expected));
        assert!(refusal(json!(null)).starts_with("model_type is absent, and"));
    }

    #[test]
    fn no_type_is_registered_twice() {
        let mut types = model_types();
        types.sort_unstable();
        assert!(types.is_sorted_by(|one, next| one < next), "{types:?}");
    }
}
