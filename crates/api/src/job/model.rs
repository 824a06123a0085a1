//! `spec.model`: a new model, described with the names of Hugging Face's `config.json`, or a pretrained model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path::ModelPath;
use crate::string_enum::Payload;

union! {
    /// The model to train.
    pub enum ModelSpec (ModelTag, ModelFields) {
        /// A Llama with randomly initialised weights.
        Llama = "Llama" { llama as "llama": LlamaSpec }
        /// A Hugging Face model with its weights.
        Pretrained = "Pretrained" { pretrained as "pretrained": PretrainedSpec }
    }
}

string_enum! {
    /// The `model_type` of Hugging Face's `config.json`: a Llama, or a model that differs from it in its attention
    /// only.
    #[derive(Default)]
    pub enum ModelType {
        /// A Llama. A Mistral is the same model if every text fits into its attention window.
        #[default]
        Llama = "Llama",
        /// A Llama whose queries, keys and values have biases.
        Qwen2 = "Qwen2",
        /// A Llama with a norm on each head of queries and keys.
        Qwen3 = "Qwen3",
    }
}

// No known model reaches these limits. Without them, the number of bytes of a model might not fit into 64 bits.

/// The largest width of the residual stream.
pub const MAX_HIDDEN_SIZE: u32 = 1 << 17;
/// The largest number of decoder layers.
pub const MAX_HIDDEN_LAYERS: u32 = 1 << 12;
/// The largest number of query heads, and of key and value heads.
pub const MAX_ATTENTION_HEADS: u32 = 1 << 12;
/// The largest width of a head.
pub const MAX_HEAD_DIM: u32 = 1 << 12;
/// The largest inner width of the feed-forward layers.
pub const MAX_INTERMEDIATE_SIZE: u32 = 1 << 20;
/// The largest size of the vocabulary.
pub const MAX_VOCAB_SIZE: u32 = 1 << 24;
/// The largest number of positions.
pub const MAX_POSITIONS: u32 = 1 << 24;

/// The configuration of a Llama. The fields have the names of Hugging Face's `config.json`, in camel case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LlamaSpec {
    /// The model type: a Llama, or a model that differs from it in its attention only.
    #[serde(default)]
    pub model_type: ModelType,
    /// The width of the residual stream.
    #[schemars(range(min = 1, max = MAX_HIDDEN_SIZE))]
    pub hidden_size: u32,
    /// The number of decoder layers.
    #[schemars(range(min = 1, max = MAX_HIDDEN_LAYERS))]
    pub num_hidden_layers: u32,
    /// The number of query heads.
    #[schemars(range(min = 1, max = MAX_ATTENTION_HEADS))]
    pub num_attention_heads: u32,
    /// The number of key and value heads, a divisor of `numAttentionHeads`. Defaults to `numAttentionHeads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_ATTENTION_HEADS))]
    pub num_key_value_heads: Option<u32>,
    /// The width of a head. Defaults to `hiddenSize / numAttentionHeads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_HEAD_DIM))]
    pub head_dim: Option<u32>,
    /// The inner width of the SwiGLU feed-forward layers.
    #[schemars(range(min = 1, max = MAX_INTERMEDIATE_SIZE))]
    pub intermediate_size: u32,
    /// The size of the vocabulary. Defaults to the size of the tokenizer's vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_VOCAB_SIZE))]
    pub vocab_size: Option<u32>,
    /// The length, in tokens, of the longest sequence that the model supports.
    #[serde(default = "super::default_number::<2048>")]
    #[schemars(range(min = 1, max = MAX_POSITIONS))]
    pub max_position_embeddings: u32,
    /// The base of the rotary embedding's wavelengths.
    #[serde(default = "rope_theta")]
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub rope_theta: f64,
    /// The number that RMSNorm adds to the mean square.
    #[serde(default = "rms_norm_eps")]
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub rms_norm_eps: f64,
    /// Whether the head shares its weight with the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// The standard deviation of the initial weights.
    #[serde(default = "initializer_range")]
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub initializer_range: f64,
}

impl LlamaSpec {
    /// Returns the number of key and value heads, or its default if the field is absent.
    pub fn key_value_heads(&self) -> u32 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the width of one head, or its default if the field is absent. Returns 0 if the field is absent and there
    /// are no heads.
    pub fn head_dim(&self) -> u32 {
        self.head_dim.or_else(|| self.hidden_size.checked_div(self.num_attention_heads)).unwrap_or(0)
    }
}

impl Payload for LlamaSpec {}

/// A Hugging Face model directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PretrainedSpec {
    /// The directory of the model, relative to the volume's root, or `hf://OWNER/NAME[@REVISION]` for a model of the
    /// Hugging Face hub.
    #[schemars(with = "ModelPath")]
    pub path: String,
}

impl Payload for PretrainedSpec {}

fn rope_theta() -> f64 {
    10_000.0
}

fn rms_norm_eps() -> f64 {
    1e-5
}

fn initializer_range() -> f64 {
    0.02
}
