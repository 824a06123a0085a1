//! Hugging Face's `config.json` of a Llama, a Mistral (which computes the same), a Qwen 2 or a Qwen 3: their defaults,
//! and the variants that this trainer does not support.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use stagecoach_api::job::ModelType;

use super::config::LlamaConfig;

mod keys;
mod rope;

pub use keys::with_kept_fields;

/// The reason that a model directory's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct ConfigError {
    /// The file.
    pub(crate) path: PathBuf,
    /// The value found and the expected one.
    pub(crate) problem: String,
}

impl LlamaConfig {
    /// Reads the `config.json` of a Hugging Face model directory. Absent fields have Hugging Face's defaults.
    ///
    /// # Errors
    /// If it can't be read, or a field has a value that this trainer does not support.
    pub fn from_hugging_face(folder: &Path) -> Result<LlamaConfig, ConfigError> {
        Ok(SourceConfig::read(folder)?.config)
    }
}

/// The configuration of a pretrained model, with all fields of its `config.json`.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The configuration as this trainer uses it.
    pub config: LlamaConfig,
    /// The fields as the file has them.
    pub fields: Map<String, Value>,
}

impl SourceConfig {
    /// Reads the `config.json` of a Hugging Face model directory.
    ///
    /// # Errors
    /// As [`LlamaConfig::from_hugging_face`].
    pub fn read(folder: &Path) -> Result<SourceConfig, ConfigError> {
        let path = folder.join("config.json");
        let read = || {
            let text = std::fs::read(&path).map_err(|e| format!("could not be read ({e})"))?;
            let json = ConfigJson(serde_json::from_slice(&text).map_err(|e| format!("is no JSON object: {e}"))?);
            Ok(SourceConfig { config: json.parse()?, fields: json.0 })
        };
        read().map_err(|problem| ConfigError { path: path.clone(), problem })
    }
}

/// The models that this trainer reads, by their `model_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    const ALL: [(&'static str, Family); 4] =
        [("llama", Family::Llama), ("mistral", Family::Mistral), ("qwen2", Family::Qwen2), ("qwen3", Family::Qwen3)];

    fn model_type(self) -> ModelType {
        match self {
            Family::Llama | Family::Mistral => ModelType::Llama,
            Family::Qwen2 => ModelType::Qwen2,
            Family::Qwen3 => ModelType::Qwen3,
        }
    }
}

/// The content of a `config.json`. A null field is treated as absent.
pub(super) struct ConfigJson(Map<String, Value>);

impl ConfigJson {
    fn parse(&self) -> Result<LlamaConfig, String> {
        let family = self.family()?;
        self.check_keys(family)?;
        let (hidden_size, num_attention_heads) =
            (self.positive_integer("hidden_size")?, self.positive_integer("num_attention_heads")?);
        let (kv_heads, positions) = match family {
            Family::Llama => (num_attention_heads, 2048),
            Family::Mistral => (8, 4096 * 32),
            Family::Qwen2 | Family::Qwen3 => (32, 32_768),
        };
        // a null value, for which every model uses its number of query heads, differs from an absent one
        let kv_heads = if self.0.contains_key("num_key_value_heads") { num_attention_heads } else { kv_heads };
        let head_dim = if family == Family::Qwen3 { 128 } else { hidden_size / num_attention_heads };
        let window = self.window(family)?;
        let (rope_theta, rope_scaling) = self.rope()?;
        let config = LlamaConfig {
            model_type: family.model_type(),
            hidden_size,
            num_hidden_layers: self.positive_integer("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: self.optional("num_key_value_heads", Self::positive_integer, kv_heads)?,
            head_dim: self.optional("head_dim", Self::positive_integer, head_dim)?,
            intermediate_size: self.positive_integer("intermediate_size")?,
            vocab_size: self.positive_integer("vocab_size")?,
            max_position_embeddings: self
                .optional("max_position_embeddings", Self::positive_integer, positions)?
                .min(window),
            rope_theta,
            rope_scaling,
            rms_norm_eps: self.optional("rms_norm_eps", Self::positive_number, 1e-6)?,
            tie_word_embeddings: self.optional("tie_word_embeddings", Self::boolean, false)?,
            initializer_range: self.optional("initializer_range", Self::positive_number, 0.02)?,
        };
        let LlamaConfig { num_attention_heads: heads, num_key_value_heads: kv, head_dim, .. } = config;
        if heads % kv != 0 {
            return Err(format!("num_key_value_heads is {kv}, expected a divisor of the {heads} num_attention_heads"));
        }
        if head_dim % 2 != 0 || head_dim == 0 {
            return Err(format!("head_dim is {head_dim}, expected an even number, for the rotation"));
        }
        Ok(config)
    }

    fn family(&self) -> Result<Family, String> {
        let found = self.get("model_type");
        let known = Family::ALL.iter().find(|(name, _)| found.is_some_and(|found| found == name));
        known.map(|(_, family)| *family).ok_or_else(|| {
            let found = found.map_or("absent".to_owned(), Value::to_string);
            let names = Family::ALL.map(|(name, _)| format!("\"{name}\""));
            format!("model_type is {found}, and this trainer has {} only", names.join(", "))
        })
    }

    /// The number of preceding tokens that a token attends to. Training only uses texts that fit into the window, which
    /// it does not change.
    fn window(&self, family: Family) -> Result<usize, String> {
        const FIELD: &str = "sliding_window";
        let has_window = match family {
            Family::Llama => false,
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.optional("use_sliding_window", Self::boolean, false)?,
        };
        let window = match (has_window, self.0.get(FIELD)) {
            (false, _) | (true, Some(Value::Null)) => None,
            (true, None) => Some(4096),
            (true, Some(_)) => Some(self.positive_integer(FIELD)?),
        };
        self.check_layer_types(window.is_some())?;
        Ok(window.unwrap_or(usize::MAX))
    }

    /// Checks the layers' types of attention: over the whole text, or over the window.
    fn check_layer_types(&self, has_window: bool) -> Result<(), String> {
        let Some(types) = self.get("layer_types") else { return Ok(()) };
        let is_known = |kind: &Value| kind == "full_attention" || has_window && kind == "sliding_attention";
        match types.as_array().map(|types| types.iter().find(|kind| !is_known(kind))) {
            Some(None) => Ok(()),
            Some(Some(kind)) => Err(format!("layer_types has {kind}, and this trainer has \"full_attention\" only")),
            None => Err(format!("layer_types is {types}, expected a list")),
        }
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn optional<T>(&self, field: &str, read: fn(&Self, &str) -> Result<T, String>, default: T) -> Result<T, String> {
        if self.get(field).is_some() { read(self, field) } else { Ok(default) }
    }

    fn positive_integer(&self, field: &str) -> Result<usize, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        let whole = || value.as_f64().filter(|size| size.fract() == 0.0 && *size > 0.0).map(|size| size as u64);
        let size = value.as_u64().or_else(whole).filter(|&size| size > 0 && size <= 1 << 32);
        size.map(|size| size as usize).ok_or_else(|| format!("{field} is {value}, expected a positive whole number"))
    }

    fn positive_number(&self, field: &str) -> Result<f64, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        value.as_f64().filter(|&v| v > 0.0).ok_or_else(|| format!("{field} is {value}, expected a positive number"))
    }

    fn boolean(&self, field: &str) -> Result<bool, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        value.as_bool().ok_or_else(|| format!("{field} is {value}, expected true or false"))
    }
}

#[cfg(test)]
mod tests;
