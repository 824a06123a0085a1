//! Configuration of a Llama, or of a model that differs from it only in its attention.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use stagecoach_api::job::{LlamaSpec, ModelType};

/// Configuration without defaults: the fields of Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// The type of the model.
    #[serde(default, with = "model_type")]
    pub model_type: ModelType,
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
    /// The change of the frequencies in Llama 3.1 and later; `None` for the original rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square under the root.
    pub rms_norm_eps: f64,
    /// Whether head and embedding share one weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial matrices.
    pub initializer_range: f64,
}

/// Rotary frequencies for texts longer than a model's original length, with the names of Hugging Face's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename = "llama3")]
pub struct RopeScaling {
    /// The factor by which pairs turn slower if they turn fewer than `low_freq_factor` times within the original
    /// length.
    pub factor: f64,
    /// See `factor`.
    pub low_freq_factor: f64,
    /// Pairs that turn more often than this within the original length keep their frequency; pairs between the two
    /// bounds are interpolated.
    pub high_freq_factor: f64,
    /// The original length, in tokens.
    pub original_max_position_embeddings: usize,
}

impl Display for RopeScaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RopeScaling {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: length,
        } = self;
        write!(f, "llama3 (factor {factor}, {low} to {high}, from {length})")
    }
}

impl LlamaConfig {
    /// The configuration that a job specifies; `vocab_size` is 0 if the job leaves it to the tokenizer.
    pub fn from_spec(spec: &LlamaSpec) -> LlamaConfig {
        LlamaConfig {
            model_type: spec.model_type,
            hidden_size: spec.hidden_size as usize,
            num_hidden_layers: spec.num_hidden_layers as usize,
            num_attention_heads: spec.num_attention_heads as usize,
            num_key_value_heads: spec.key_value_heads() as usize,
            head_dim: spec.head_dim() as usize,
            intermediate_size: spec.intermediate_size as usize,
            vocab_size: spec.vocab_size.unwrap_or_default() as usize,
            max_position_embeddings: spec.max_position_embeddings as usize,
            rope_theta: spec.rope_theta,
            rope_scaling: None,
            rms_norm_eps: spec.rms_norm_eps,
            tie_word_embeddings: spec.tie_word_embeddings,
            initializer_range: spec.initializer_range,
        }
    }

    /// The fields whose difference gives weights another shape or another function, by their names in a job, with both
    /// values.
    pub fn differences(&self, theirs: &LlamaConfig) -> Vec<String> {
        fn field<T: PartialEq + Display>(name: &str, ours: &T, theirs: &T) -> Option<String> {
            (ours != theirs).then(|| format!("{name} is {ours} here and {theirs} there"))
        }
        let LlamaConfig {
            model_type,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size,
            vocab_size,
            max_position_embeddings: _, // an upper bound, which does not affect the rotation of a position
            rope_theta,
            rope_scaling,
            rms_norm_eps,
            tie_word_embeddings,
            initializer_range: _, // affects only new weights
        } = self;
        let scaling = |scaling: &Option<RopeScaling>| scaling.map_or("none".to_owned(), |scaling| scaling.to_string());
        let fields = [
            field("modelType", model_type, &theirs.model_type),
            field("hiddenSize", hidden_size, &theirs.hidden_size),
            field("numHiddenLayers", num_hidden_layers, &theirs.num_hidden_layers),
            field("numAttentionHeads", num_attention_heads, &theirs.num_attention_heads),
            field("numKeyValueHeads", num_key_value_heads, &theirs.num_key_value_heads),
            field("headDim", head_dim, &theirs.head_dim),
            field("intermediateSize", intermediate_size, &theirs.intermediate_size),
            field("vocabSize", vocab_size, &theirs.vocab_size),
            field("ropeTheta", rope_theta, &theirs.rope_theta),
            field("rope_scaling", &scaling(rope_scaling), &scaling(&theirs.rope_scaling)),
            field("rmsNormEps", rms_norm_eps, &theirs.rms_norm_eps),
            field("tieWordEmbeddings", tie_word_embeddings, &theirs.tie_word_embeddings),
        ];
        fields.into_iter().flatten().collect()
    }
}

/// The spelling in `config.json`: the job's in lower case.
mod model_type {
    use serde::{Deserialize, Deserializer, Serializer};
    use stagecoach_api::job::ModelType;

    pub(super) fn serialize<S: Serializer>(model_type: &ModelType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&model_type.as_str().to_lowercase())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModelType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let all = [ModelType::Llama, ModelType::Qwen2, ModelType::Qwen3];
        let found = all.into_iter().find(|model_type| model_type.as_str().to_lowercase() == name);
        found.ok_or_else(|| serde::de::Error::custom(format!("model_type is {name}, expected llama, qwen2 or qwen3")))
    }
}
