//! Reads and writes the `config.json` of Llama's families, and refuses the variants that this trainer lacks.

use std::sync::Arc;

use serde_json::{Value, json};
use stagecoach_api::job::{
    MAX_ATTENTION_HEADS, MAX_HEAD_DIM, MAX_HIDDEN_LAYERS, MAX_HIDDEN_SIZE, MAX_INTERMEDIATE_SIZE, MAX_POSITIONS,
    MAX_VOCAB_SIZE,
};

use super::config::LlamaConfig;
use super::families::{LlamaFamily, SlidingWindow};
use super::qkv::QkvVariant;
use crate::ModelConfig;
use crate::config_json::ConfigJson;
use crate::model_config::ModelFamily;

pub(super) const KEYS: &str = "
    architectures dtype head_dim hidden_act hidden_size initializer_range intermediate_size layer_types
    max_position_embeddings mlp_bias attention_bias model_type num_attention_heads num_hidden_layers
    num_key_value_heads original_max_position_embeddings rms_norm_eps rope_parameters rope_scaling rope_theta
    sliding_window tie_word_embeddings torch_dtype use_sliding_window vocab_size";

impl ModelFamily for LlamaFamily {
    fn model_type(&self) -> &'static str {
        self.name
    }

    fn keys(&self) -> &'static str {
        KEYS
    }

    fn read(&self, json: &ConfigJson) -> Result<Arc<dyn ModelConfig>, String> {
        Ok(Arc::new(self.parse(json)?))
    }
}

impl LlamaFamily {
    fn parse(&self, json: &ConfigJson) -> Result<LlamaConfig, String> {
        self.check(json)?;
        let (hidden_size, num_attention_heads) =
            (json.positive_integer("hidden_size")?, json.positive_integer("num_attention_heads")?);
        // null differs from an absent field: with null, every family uses as many key and value heads as query heads
        let is_absent = !json.0.contains_key("num_key_value_heads");
        let kv_heads = self.key_value_heads.filter(|_| is_absent).unwrap_or(num_attention_heads);
        let head_dim = self.head_dim.unwrap_or(hidden_size / num_attention_heads);
        let window = self.window(json)?;
        let (rope_theta, rope_scaling) = json.rope()?;
        let config = LlamaConfig {
            model_type: self.model_type,
            hidden_size,
            num_hidden_layers: json.positive_integer("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: json.optional("num_key_value_heads", ConfigJson::positive_integer, kv_heads)?,
            head_dim: json.optional("head_dim", ConfigJson::positive_integer, head_dim)?,
            intermediate_size: json.positive_integer("intermediate_size")?,
            vocab_size: json.positive_integer("vocab_size")?,
            max_position_embeddings: json
                .optional("max_position_embeddings", ConfigJson::positive_integer, self.positions)?
                .min(window),
            rope_theta,
            rope_scaling,
            rms_norm_eps: json.optional("rms_norm_eps", ConfigJson::positive_number, 1e-6)?,
            tie_word_embeddings: json.optional("tie_word_embeddings", ConfigJson::boolean, false)?,
            initializer_range: json.optional("initializer_range", ConfigJson::positive_number, 0.02)?,
        };
        let LlamaConfig { num_attention_heads: heads, num_key_value_heads: kv, head_dim, .. } = config;
        if heads % kv != 0 {
            return Err(format!("num_key_value_heads is {kv}, expected a divisor of the {heads} num_attention_heads"));
        }
        let sizes = [
            ("hidden_size", config.hidden_size, MAX_HIDDEN_SIZE),
            ("num_hidden_layers", config.num_hidden_layers, MAX_HIDDEN_LAYERS),
            ("num_attention_heads", heads, MAX_ATTENTION_HEADS),
            ("head_dim", head_dim, MAX_HEAD_DIM),
            ("intermediate_size", config.intermediate_size, MAX_INTERMEDIATE_SIZE),
            ("vocab_size", config.vocab_size, MAX_VOCAB_SIZE),
            ("max_position_embeddings", config.max_position_embeddings, MAX_POSITIONS),
        ];
        if let Some((field, size, most)) = sizes.iter().find(|(_, size, most)| *size > *most as usize) {
            return Err(format!("{field} is {size}, expected at most {most}"));
        }
        if head_dim % 2 != 0 || head_dim == 0 {
            return Err(format!("head_dim is {head_dim}, expected an even number, for the rotation"));
        }
        Ok(config)
    }

    /// Refuses the variants of a Llama that this trainer lacks.
    fn check(&self, json: &ConfigJson) -> Result<(), String> {
        json.only("hidden_act", &[json!("silu"), json!("swish")])?; // two names of one function
        if self.has_attention_bias_field() {
            json.only("attention_bias", &[json!(false)])?;
        }
        json.only("mlp_bias", &[json!(false)])?;
        json.check_keys(KEYS)
    }

    /// Whether the family has the field `attention_bias`. A family that always has biases lacks this field.
    fn has_attention_bias_field(&self) -> bool {
        self.qkv != QkvVariant::Bias
    }

    /// Returns the sliding window, or `usize::MAX` without a window. The window is the number of tokens to which a
    /// token attends, including itself. Training uses only texts that fit into the window, so the window has no effect
    /// on training.
    fn window(&self, json: &ConfigJson) -> Result<usize, String> {
        const FIELD: &str = "sliding_window";
        let has_window = match self.window {
            SlidingWindow::Never => false,
            SlidingWindow::Always => true,
            SlidingWindow::IfUsed => json.optional("use_sliding_window", ConfigJson::boolean, false)?,
        };
        let window = match (has_window, json.0.get(FIELD)) {
            (false, _) | (true, Some(Value::Null)) => None,
            (true, None) => Some(4096),
            (true, Some(_)) => Some(json.positive_integer(FIELD)?),
        };
        check_layer_types(json, window.is_some())?;
        Ok(window.unwrap_or(usize::MAX))
    }
}

/// Checks that each layer attends over the whole text or, if the model has a window, over the window.
fn check_layer_types(json: &ConfigJson, has_window: bool) -> Result<(), String> {
    let Some(types) = json.get("layer_types") else { return Ok(()) };
    let is_known = |kind: &Value| kind == "full_attention" || has_window && kind == "sliding_attention";
    match types.as_array().map(|types| types.iter().find(|kind| !is_known(kind))) {
        Some(None) => Ok(()),
        Some(Some(kind)) => Err(format!(
            "layer_types has {kind}, expected \"full_attention\", or \"sliding_attention\" if the model has a \
             sliding window"
        )),
        None => Err(format!("layer_types is {types}, expected a list")),
    }
}

impl LlamaConfig {
    /// Returns the content of `config.json`.
    pub(super) fn to_json(&self) -> Value {
        let family = LlamaFamily::of(self.model_type);
        let mut config = json!({
            "architectures": [format!("{}ForCausalLM", self.model_type)],
            "hidden_act": "silu",
            "torch_dtype": "float32",
        });
        if family.has_attention_bias_field() {
            config["attention_bias"] = false.into();
        }
        if family.has_mlp_bias_field {
            config["mlp_bias"] = false.into();
        }
        if let (Some(all), Ok(Value::Object(own))) = (config.as_object_mut(), serde_json::to_value(self)) {
            all.extend(own);
        }
        config
    }
}

#[cfg(test)]
pub(super) mod tests;
