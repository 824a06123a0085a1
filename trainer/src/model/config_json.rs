//! Hugging Face's `config.json` of a Llama, a Mistral, which computes the same, a Qwen 2 or a Qwen 3: their defaults, and what
//! this trainer does not support.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use stagecoach_api::job::ModelType;

use super::config::{LlamaConfig, RopeScaling};

/// Why a model directory's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub(crate) struct ConfigError {
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
    pub(crate) fn from_hugging_face(folder: &Path) -> Result<LlamaConfig, ConfigError> {
        let path = folder.join("config.json");
        let read = || {
            let text = std::fs::read(&path).map_err(|e| format!("could not be read ({e})"))?;
            let fields = serde_json::from_slice(&text).map_err(|e| format!("is no JSON object: {e}"))?;
            ConfigJson(fields).parse()
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

/// The `rope_type` of [`RopeScaling`], and its other fields.
const LLAMA_3: &str = "llama3";
const ROPE_SCALING_FIELDS: [&str; 4] =
    ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

/// Older versions of `config.json` call it `type`.
fn rope_type(rope: &Value) -> Option<&str> {
    ["rope_type", "type"].iter().find_map(|kind| rope.get(kind)?.as_str())
}

/// The content of a `config.json`. A null field is treated as absent.
struct ConfigJson(Map<String, Value>);

impl ConfigJson {
    fn parse(&self) -> Result<LlamaConfig, String> {
        let family = self.family()?;
        self.check_supported(family)?;
        let (hidden_size, num_attention_heads) =
            (self.positive_integer("hidden_size")?, self.positive_integer("num_attention_heads")?);
        let (kv_heads, positions) = match family {
            Family::Llama => (num_attention_heads, 2048),
            Family::Mistral => (8, 4096 * 32),
            Family::Qwen2 | Family::Qwen3 => (32, 32_768),
        };
        // null, of which every model makes this, is another matter than absent
        let kv_heads = if self.0.contains_key("num_key_value_heads") { num_attention_heads } else { kv_heads };
        let head_dim = if family == Family::Qwen3 { 128 } else { hidden_size / num_attention_heads };
        let window = self.window(family)?;
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
            rope_theta: self.rope_theta()?,
            rope_scaling: self.rope_scaling()?,
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

    /// Refuses every field whose value selects a variant that this trainer does not implement.
    fn check_supported(&self, family: Family) -> Result<(), String> {
        let only = |field: &str, value: Option<&Value>, expected: Value| match value {
            Some(found) if *found != expected => {
                Err(format!("{field} is {found}, and this trainer has {expected} only"))
            }
            _ => Ok(()),
        };
        only("hidden_act", self.get("hidden_act"), "silu".into())?;
        if family != Family::Qwen2 {
            only("attention_bias", self.get("attention_bias"), false.into())?; // of a Qwen 2 it says nothing
        }
        only("mlp_bias", self.get("mlp_bias"), false.into())?;
        only("pretraining_tp", self.get("pretraining_tp"), 1.into())?;
        if let Some(found) = self.get("quantization_config") {
            return Err(format!("quantization_config is {found}, and this trainer reads plain weights only"));
        }
        let only_one = |field: &str, value: Option<&Value>| match value.map(Value::as_f64) {
            None | Some(Some(1.0)) => Ok(()),
            _ => only(field, value, 1.0.into()),
        };
        only_one("partial_rotary_factor", self.get("partial_rotary_factor"))?;
        for rope in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(rope) else { continue };
            let is_llama3 = rope_type(value) == Some(LLAMA_3);
            for kind in ["rope_type", "type"] {
                if !is_llama3 {
                    only(&format!("{rope}.{kind}"), value.get(kind), "default".into())?;
                }
            }
            only_one(&format!("{rope}.partial_rotary_factor"), value.get("partial_rotary_factor"))?;
            let known = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
            let is_known = |key: &str| known.contains(&key) || is_llama3 && ROPE_SCALING_FIELDS.contains(&key);
            match value.as_object().map(|fields| fields.keys().find(|key| !is_known(key))) {
                Some(None) => {}
                _ => {
                    return Err(format!(
                        "{rope} is {value}, and this trainer has the default rotation and llama3's only"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Newer versions of `config.json` have it in `rope_parameters`.
    fn rope_theta(&self) -> Result<f64, String> {
        let nested = self.get("rope_parameters").and_then(|rope| rope.get("rope_theta"));
        match nested {
            Some(value) => ConfigJson([("rope_theta".to_owned(), value.clone())].into_iter().collect())
                .positive_number("rope_theta"),
            None => self.optional("rope_theta", Self::positive_number, 10_000.0),
        }
    }

    /// How far back a token sees; here only texts that fit into that are trained on, which no window changes.
    fn window(&self, family: Family) -> Result<usize, String> {
        const FIELD: &str = "sliding_window";
        let has_window = match family {
            Family::Llama => false,
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.optional("use_sliding_window", Self::boolean, false)?,
        };
        match (has_window, self.0.get(FIELD)) {
            (false, _) | (true, Some(Value::Null)) => Ok(usize::MAX),
            (true, None) => Ok(4096),
            (true, Some(_)) => self.positive_integer(FIELD),
        }
    }

    /// Llama 3's, in `rope_scaling` or, in newer versions of `config.json`, in `rope_parameters`.
    fn rope_scaling(&self) -> Result<Option<RopeScaling>, String> {
        for rope in ["rope_parameters", "rope_scaling"] {
            let Some(value) = self.get(rope).filter(|value| rope_type(value) == Some(LLAMA_3)) else { continue };
            let fields = ConfigJson(value.as_object().cloned().unwrap_or_default());
            let number = |field| fields.positive_number(field).map_err(|problem| format!("{rope}: {problem}"));
            let scaling = RopeScaling {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: number("original_max_position_embeddings")?,
            };
            if scaling.low_freq_factor >= scaling.high_freq_factor {
                return Err(format!("{rope} is {value}, expected a low_freq_factor below the high_freq_factor"));
            }
            return Ok(Some(scaling));
        }
        Ok(None)
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn optional<T>(&self, field: &str, read: fn(&Self, &str) -> Result<T, String>, default: T) -> Result<T, String> {
        if self.get(field).is_some() { read(self, field) } else { Ok(default) }
    }

    fn positive_integer(&self, field: &str) -> Result<usize, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        let size = value.as_u64().filter(|&size| size > 0 && size <= 1 << 32);
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
