//! Hugging Face's `config.json` of a Llama: its defaults, and what this trainer does not support.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stagecoach_api::job::LlamaSpec;

/// Configuration of a Llama without defaults: the fields of Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; divides the number of query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even, for the rotary embedding.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square under the root.
    pub rms_norm_eps: f64,
    /// Whether head and embedding share one weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial matrices.
    pub initializer_range: f64,
}

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
    /// The configuration that a job specifies; `vocab_size` is 0 if the job leaves it to the tokenizer.
    pub(crate) fn from_spec(spec: &LlamaSpec) -> LlamaConfig {
        LlamaConfig {
            hidden_size: spec.hidden_size as usize,
            num_hidden_layers: spec.num_hidden_layers as usize,
            num_attention_heads: spec.num_attention_heads as usize,
            num_key_value_heads: spec.key_value_heads() as usize,
            head_dim: spec.head_dim() as usize,
            intermediate_size: spec.intermediate_size as usize,
            vocab_size: spec.vocab_size.unwrap_or_default() as usize,
            max_position_embeddings: spec.max_position_embeddings as usize,
            rope_theta: spec.rope_theta,
            rms_norm_eps: spec.rms_norm_eps,
            tie_word_embeddings: spec.tie_word_embeddings,
            initializer_range: spec.initializer_range,
        }
    }

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

    /// The fields in which `theirs` differs such that weights of one model would have other shapes, or compute another
    /// function, in the other: by their names in a job, with both values.
    pub(crate) fn differences(&self, theirs: &LlamaConfig) -> Vec<String> {
        fn field<T: PartialEq + Display>(name: &str, ours: &T, theirs: &T) -> Option<String> {
            (ours != theirs).then(|| format!("{name} is {ours} here and {theirs} there"))
        }
        let LlamaConfig {
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size,
            vocab_size,
            max_position_embeddings: _, // an upper bound, on which the rotation of a position does not depend
            rope_theta,
            rms_norm_eps,
            tie_word_embeddings,
            initializer_range: _, // only of new weights
        } = self;
        let fields = [
            field("hiddenSize", hidden_size, &theirs.hidden_size),
            field("numHiddenLayers", num_hidden_layers, &theirs.num_hidden_layers),
            field("numAttentionHeads", num_attention_heads, &theirs.num_attention_heads),
            field("numKeyValueHeads", num_key_value_heads, &theirs.num_key_value_heads),
            field("headDim", head_dim, &theirs.head_dim),
            field("intermediateSize", intermediate_size, &theirs.intermediate_size),
            field("vocabSize", vocab_size, &theirs.vocab_size),
            field("ropeTheta", rope_theta, &theirs.rope_theta),
            field("rmsNormEps", rms_norm_eps, &theirs.rms_norm_eps),
            field("tieWordEmbeddings", tie_word_embeddings, &theirs.tie_word_embeddings),
        ];
        fields.into_iter().flatten().collect()
    }
}

/// The content of a `config.json`. A null field is treated as absent.
struct ConfigJson(Map<String, Value>);

impl ConfigJson {
    fn parse(&self) -> Result<LlamaConfig, String> {
        self.check_supported()?;
        let (hidden_size, num_attention_heads) =
            (self.positive_integer("hidden_size")?, self.positive_integer("num_attention_heads")?);
        let config = LlamaConfig {
            hidden_size,
            num_hidden_layers: self.positive_integer("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: self.optional("num_key_value_heads", Self::positive_integer, num_attention_heads)?,
            head_dim: self.optional("head_dim", Self::positive_integer, hidden_size / num_attention_heads)?,
            intermediate_size: self.positive_integer("intermediate_size")?,
            vocab_size: self.positive_integer("vocab_size")?,
            max_position_embeddings: self.optional("max_position_embeddings", Self::positive_integer, 2048)?,
            rope_theta: self.rope_theta()?,
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

    /// Refuses every field whose value selects a variant that this trainer does not implement.
    fn check_supported(&self) -> Result<(), String> {
        let only = |field: &str, value: Option<&Value>, expected: Value, needed: bool| match value {
            Some(found) if *found == expected => Ok(()),
            None if !needed => Ok(()),
            found => {
                let found = found.map_or("absent".to_owned(), Value::to_string);
                Err(format!("{field} is {found}, and this trainer has {expected} only"))
            }
        };
        only("model_type", self.get("model_type"), "llama".into(), true)?;
        only("hidden_act", self.get("hidden_act"), "silu".into(), false)?;
        only("attention_bias", self.get("attention_bias"), false.into(), false)?;
        only("mlp_bias", self.get("mlp_bias"), false.into(), false)?;
        only("pretraining_tp", self.get("pretraining_tp"), 1.into(), false)?;
        if let Some(found) = self.get("quantization_config") {
            return Err(format!("quantization_config is {found}, and this trainer reads plain weights only"));
        }
        let only_one = |field: &str, value: Option<&Value>| match value.map(Value::as_f64) {
            None | Some(Some(1.0)) => Ok(()),
            _ => only(field, value, 1.0.into(), false),
        };
        only_one("partial_rotary_factor", self.get("partial_rotary_factor"))?;
        for rope in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(rope) else { continue };
            for kind in ["rope_type", "type"] {
                only(&format!("{rope}.{kind}"), value.get(kind), "default".into(), false)?;
            }
            only_one(&format!("{rope}.partial_rotary_factor"), value.get("partial_rotary_factor"))?;
            let known = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
            match value.as_object().map(|fields| fields.keys().find(|key| !known.contains(&key.as_str()))) {
                Some(None) => {}
                _ => return Err(format!("{rope} is {value}, and this trainer has the default rotation only")),
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Architecture, Llama};

    /// Parses the smallest `config.json` of a Llama with `changes`.
    fn parse(changes: Value) -> Result<LlamaConfig, String> {
        let Value::Object(mut fields) = json!({
            "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "vocab_size": 64,
        }) else {
            unreachable!()
        };
        fields.extend(changes.as_object().unwrap().clone());
        ConfigJson(fields).parse()
    }

    #[test]
    fn absent_fields_have_hugging_faces_defaults() {
        let defaults = LlamaConfig {
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 4,
            head_dim: 8,
            intermediate_size: 48,
            vocab_size: 64,
            max_position_embeddings: 2048,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: false,
            initializer_range: 0.02,
        };
        assert_eq!(parse(json!({})).unwrap(), defaults);
        // as other versions write them
        let same = json!({
            "head_dim": null, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false, "pretraining_tp": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "torch_dtype": "bfloat16",
        });
        assert_eq!(parse(same).unwrap(), defaults);
        let theta = json!({"rope_theta": 1.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000}});
        assert_eq!(parse(theta).unwrap().rope_theta, 500_000.0);
        assert_eq!(parse(json!({"num_key_value_heads": 2})).unwrap().num_key_value_heads, 2);
    }

    #[test]
    fn unsupported_values_are_refused_with_their_field() {
        for (changes, expected) in [
            (json!({"model_type": "mistral"}), "model_type is \"mistral\""),
            (json!({"model_type": null}), "model_type is absent"),
            (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\""),
            (json!({"attention_bias": true}), "attention_bias is true"),
            (json!({"mlp_bias": true}), "mlp_bias is true"),
            (json!({"pretraining_tp": 2}), "pretraining_tp is 2"),
            (json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), "rope_scaling.type is \"linear\""),
            (json!({"rope_scaling": {"factor": 2.0}}), "rope_scaling is {\"factor\":2.0}"),
            (json!({"rope_parameters": {"rope_type": "llama3"}}), "rope_parameters.rope_type is \"llama3\""),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (json!({"quantization_config": {"bits": 4}}), "quantization_config is"),
            (json!({"hidden_size": null}), "lacks hidden_size"),
            (json!({"hidden_size": -1}), "hidden_size is -1"),
            (json!({"num_attention_heads": 0}), "num_attention_heads is 0"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads is 3"),
            (json!({"head_dim": 7}), "head_dim is 7"),
            (json!({"rms_norm_eps": "small"}), "rms_norm_eps is \"small\""),
            (json!({"tie_word_embeddings": 1}), "tie_word_embeddings is 1"),
        ] {
            let error = parse(changes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_field_that_changes_the_computation_is_a_difference() {
        let ours = parse(json!({})).unwrap();
        assert_eq!(ours.differences(&ours), Vec::<String>::new());
        for (changes, expected) in [
            (json!({"hidden_size": 64, "head_dim": 8}), &["hiddenSize is 32 here and 64 there"][..]),
            (json!({"num_hidden_layers": 3}), &["numHiddenLayers is 2 here and 3 there"]),
            (json!({"num_key_value_heads": 2}), &["numKeyValueHeads is 4 here and 2 there"]),
            (json!({"head_dim": 16}), &["headDim is 8 here and 16 there"]),
            (json!({"intermediate_size": 24}), &["intermediateSize is 48 here and 24 there"]),
            (json!({"vocab_size": 65}), &["vocabSize is 64 here and 65 there"]),
            (json!({"rope_theta": 5e5}), &["ropeTheta is 10000 here and 500000 there"]),
            (json!({"rms_norm_eps": 1e-5}), &["rmsNormEps is 0.000001 here and 0.00001 there"]),
            (json!({"tie_word_embeddings": true}), &["tieWordEmbeddings is false here and true there"]),
            (json!({"max_position_embeddings": 16, "initializer_range": 0.1}), &[]),
            // tensors of the same shapes
            (
                json!({"num_attention_heads": 8}),
                &[
                    "numAttentionHeads is 4 here and 8 there",
                    "numKeyValueHeads is 4 here and 8 there",
                    "headDim is 8 here and 4 there",
                ],
            ),
        ] {
            assert_eq!(ours.differences(&parse(changes).unwrap()), expected);
        }
    }

    #[test]
    fn a_written_config_is_parsed_back() {
        let config = LlamaConfig { tie_word_embeddings: true, rope_theta: 5e5, ..parse(json!({})).unwrap() };
        let Value::Object(written) = Llama::new(config.clone(), tch::Device::Cpu).config_json() else { unreachable!() };
        assert_eq!(ConfigJson(written).parse().unwrap(), config);
    }
}
