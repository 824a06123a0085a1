//! The configuration of a model of Llama's families.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use stagecoach_api::job::{LlamaSpec, ModelType};
use tch::Device;

use super::Llama;
use super::families::LlamaFamily;
use crate::config_json::RopeScaling;
use crate::{Architecture, ModelConfig};

/// The configuration, with a value for every field. The fields have the names of Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LlamaConfig {
    /// The type of the model, which determines its family.
    #[serde(serialize_with = "LlamaConfig::serialize_model_type")]
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
    /// Rows of embedding and head; 0 if the tokenizer determines the number.
    pub vocab_size: usize,
    /// The number of tokens of the longest sequence.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The scaling of the rotary frequencies in Llama 3.1 and later; `None` for the original frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// The constant that RMSNorm adds to the mean square under the root.
    pub rms_norm_eps: f64,
    /// Whether head and embedding share one weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial matrices.
    pub initializer_range: f64,
}

impl LlamaConfig {
    /// Returns the configuration that a job specifies.
    pub(crate) fn from_spec(spec: &LlamaSpec) -> LlamaConfig {
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

    /// Writes `model_type` in the spelling of `config.json`.
    fn serialize_model_type<S: Serializer>(model_type: &ModelType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(LlamaFamily::of(*model_type).name)
    }
}

impl ModelConfig for LlamaConfig {
    fn spec_field(&self) -> &'static str {
        "llama"
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
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
        vec![
            ("modelType", model_type.to_string()),
            ("hiddenSize", hidden_size.to_string()),
            ("numHiddenLayers", num_hidden_layers.to_string()),
            ("numAttentionHeads", num_attention_heads.to_string()),
            ("numKeyValueHeads", num_key_value_heads.to_string()),
            ("headDim", head_dim.to_string()),
            ("intermediateSize", intermediate_size.to_string()),
            ("vocabSize", vocab_size.to_string()),
            ("ropeTheta", rope_theta.to_string()),
            ("rope_scaling", rope_scaling.map_or("none".to_owned(), |scaling| scaling.to_string())),
            ("rmsNormEps", rms_norm_eps.to_string()),
            ("tieWordEmbeddings", tie_word_embeddings.to_string()),
        ]
    }

    fn field_not_in_spec(&self) -> Option<&'static str> {
        self.rope_scaling.map(|_| "rope_scaling")
    }

    fn vocab_size(&self) -> Option<usize> {
        (self.vocab_size > 0).then_some(self.vocab_size)
    }

    fn max_position_embeddings(&self) -> usize {
        self.max_position_embeddings
    }

    fn with_vocab_size(&self, vocab_size: usize) -> Arc<dyn ModelConfig> {
        Arc::new(LlamaConfig { vocab_size, ..self.clone() })
    }

    fn architecture(&self, device: Device) -> Box<dyn Architecture> {
        Box::new(Llama { config: self.clone(), device })
    }
}
