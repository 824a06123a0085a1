//! The families of models that have Llama's layers: one row for each `model_type` of Hugging Face.

use stagecoach_api::job::ModelType;

use super::qkv::QkvVariant;

/// The properties of a family that no field of `config.json` states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LlamaFamily {
    /// Hugging Face's `model_type`.
    pub(super) name: &'static str,
    /// The type under which this trainer trains and writes the model.
    pub(super) model_type: ModelType,
    /// The transform of the projected queries, keys and values before their rotation.
    pub(super) qkv: QkvVariant,
    /// `num_key_value_heads` if the field is absent; `None` for the number of query heads.
    pub(super) key_value_heads: Option<usize>,
    /// `head_dim` if the field is absent; `None` for `hidden_size / num_attention_heads`.
    pub(super) head_dim: Option<usize>,
    /// `max_position_embeddings` if the field is absent.
    pub(super) positions: usize,
    /// The cases in which a token attends only to the last `sliding_window` tokens, including itself.
    pub(super) window: SlidingWindow,
    /// Whether Hugging Face's configuration has the field `mlp_bias`.
    pub(super) has_mlp_bias_field: bool,
}

/// The use of `sliding_window`, the number of tokens to which a token attends, including itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlidingWindow {
    /// The field has no effect.
    Never,
    /// Attention has the window unless the field is null.
    Always,
    /// Like [`SlidingWindow::Always`] if `use_sliding_window` is true.
    IfUsed,
}

const LLAMA: LlamaFamily = LlamaFamily {
    name: "llama",
    model_type: ModelType::Llama,
    qkv: QkvVariant::Plain,
    key_value_heads: None,
    head_dim: None,
    positions: 2048,
    window: SlidingWindow::Never,
    has_mlp_bias_field: true,
};
/// On texts that fit into its window, a Mistral computes the same as a Llama.
const MISTRAL: LlamaFamily = LlamaFamily {
    name: "mistral",
    key_value_heads: Some(8),
    positions: 4096 * 32,
    window: SlidingWindow::Always,
    ..LLAMA
};
const QWEN2: LlamaFamily = LlamaFamily {
    name: "qwen2",
    model_type: ModelType::Qwen2,
    qkv: QkvVariant::Bias,
    key_value_heads: Some(32),
    positions: 32_768,
    window: SlidingWindow::IfUsed,
    has_mlp_bias_field: false,
    ..LLAMA
};
const QWEN3: LlamaFamily = LlamaFamily {
    name: "qwen3",
    model_type: ModelType::Qwen3,
    qkv: QkvVariant::HeadNorms,
    head_dim: Some(128),
    ..QWEN2
};

pub(crate) static FAMILIES: [LlamaFamily; 4] = [LLAMA, MISTRAL, QWEN2, QWEN3];

impl LlamaFamily {
    /// Returns the family whose name this trainer writes into the `config.json` of models of this type.
    pub(super) const fn of(model_type: ModelType) -> LlamaFamily {
        match model_type {
            ModelType::Llama => LLAMA,
            ModelType::Qwen2 => QWEN2,
            ModelType::Qwen3 => QWEN3,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config_json::{Role, role};
    use crate::llama::LlamaConfig;
    use crate::llama::config_json::KEYS;
    use crate::llama::config_json::tests::{parse, parse_all};

    /// The keys of each family in transformers.
    const SUPPORTED: [(&str, &str); 4] = [
        ("llama", "attention_bias attention_dropout head_dim hidden_act hidden_size intermediate_size max_position_embeddings
            mlp_bias num_attention_heads num_hidden_layers num_key_value_heads pretraining_tp rms_norm_eps rope_parameters
            rope_scaling rope_theta"),
        ("mistral", "attention_dropout head_dim hidden_act hidden_size intermediate_size max_position_embeddings
            num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters rope_theta
            sliding_window"),
        ("qwen2", "attention_dropout hidden_act hidden_size intermediate_size layer_types max_position_embeddings
            max_window_layers num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters
            rope_scaling rope_theta sliding_window use_mrope use_sliding_window"),
        ("qwen3", "attention_bias attention_dropout head_dim hidden_act hidden_size intermediate_size layer_types
            max_position_embeddings max_window_layers num_attention_heads num_hidden_layers num_key_value_heads
            rms_norm_eps rope_parameters rope_scaling rope_theta sliding_window use_sliding_window"),
    ];

    #[test]
    fn every_type_is_written_as_its_family() {
        for &model_type in ModelType::ALL {
            let family = LlamaFamily::of(model_type);
            assert_eq!((family.model_type, family.name), (model_type, &*model_type.as_str().to_lowercase()));
            assert!(FAMILIES.iter().any(|other| other.name == family.name), "{model_type} is not read");
        }
    }

    #[test]
    fn no_key_of_a_family_is_refused() {
        for LlamaFamily { name, .. } in FAMILIES {
            let (_, keys) = SUPPORTED.iter().find(|(family, _)| *family == name).expect(name);
            for key in keys.split_whitespace() {
                assert_ne!(role(key, KEYS), Role::Refused, "{name}: {key}");
            }
        }
    }

    #[test]
    fn a_mistral_is_a_llama_whose_texts_fit_into_its_window() {
        let mistral = |mut changes: Value| {
            changes["model_type"] = json!("mistral");
            changes["num_attention_heads"] = json!(16);
            parse(changes).unwrap()
        };
        let llama = parse(json!({"num_attention_heads": 16, "num_key_value_heads": 8})).unwrap();
        for (changes, positions) in [
            (json!({}), 4096),
            (json!({"sliding_window": null}), 131_072),
            (json!({"sliding_window": null, "max_position_embeddings": 32_768}), 32_768),
            (json!({"sliding_window": 512, "max_position_embeddings": 32_768}), 512),
        ] {
            assert_eq!(mistral(changes), LlamaConfig { max_position_embeddings: positions, ..llama.clone() });
        }
    }

    #[test]
    fn qwens_differ_in_their_attention_and_in_their_defaults() {
        let qwen = |mut changes: Value, model_type: &str| {
            changes["model_type"] = json!(model_type);
            changes["num_attention_heads"] = json!(32);
            changes["hidden_size"] = json!(64);
            parse(changes).unwrap()
        };
        let llama = parse(json!({"num_attention_heads": 32, "hidden_size": 64})).unwrap();
        let expected = LlamaConfig { max_position_embeddings: 32_768, model_type: ModelType::Qwen2, ..llama };
        assert_eq!(qwen(json!({}), "qwen2"), expected);
        // Qwen 2's files have these fields
        let written = json!({"attention_bias": true, "use_sliding_window": false, "sliding_window": 16, "num_key_value_heads": null});
        assert_eq!(qwen(written, "qwen2"), expected);
        let windowed = json!({"use_sliding_window": true, "sliding_window": 512});
        assert_eq!(qwen(windowed, "qwen2"), LlamaConfig { max_position_embeddings: 512, ..expected.clone() });
        let expected = LlamaConfig { head_dim: 128, model_type: ModelType::Qwen3, ..expected };
        assert_eq!(qwen(json!({}), "qwen3"), expected);
        assert_eq!(qwen(json!({"head_dim": 16}), "qwen3"), LlamaConfig { head_dim: 16, ..expected });
    }

    /// The configurations are those that the models' authors published.
    #[test]
    fn configs_of_real_models_pass() {
        let llama = json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
            "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
            "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 5e5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
            "vocab_size": 128256,
        });
        let small_llama = json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
            "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.0416, "intermediate_size": 1536,
            "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
            "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2,
            "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 1e5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers.js_config": {"dtype": "q4"},
            "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152,
        });
        let mistral = json!({
            "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": null,
            "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0", "use_cache": true,
            "vocab_size": 32768,
        });
        let qwen2 = json!({
            "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
            "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02, "intermediate_size": 8960,
            "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 12,
            "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
            "vocab_size": 151936,
        });
        let qwen3 = json!({
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
            "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
            "initializer_range": 0.02, "intermediate_size": 3072, "layer_types": vec!["full_attention"; 28],
            "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
            "num_hidden_layers": 28, "num_key_value_heads": 8, "pad_token_id": null, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "sliding_window": null,
            "tie_word_embeddings": true, "transformers_version": "5.0.0", "use_cache": true, "use_sliding_window": false,
            "vocab_size": 151936,
        });
        let published = [llama, small_llama, mistral, qwen2, qwen3];
        for config in &published {
            parse_all(config.as_object().unwrap()).unwrap_or_else(|problem| panic!("{problem}: {config}"));
        }
        for LlamaFamily { name, .. } in FAMILIES {
            assert!(published.iter().any(|config| config["model_type"] == name), "{name}");
        }
    }
}
