use serde_json::Map;
use stagecoach_api::job::ModelType;

use super::super::families::FAMILIES;
use super::*;
use crate::config_json::RopeScaling;
use crate::with_kept_fields;

/// Parses the smallest valid `config.json` of a Llama, after `changes`.
pub(in super::super) fn parse(changes: Value) -> Result<LlamaConfig, String> {
    let Value::Object(mut fields) = json!({
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "vocab_size": 64,
    }) else {
        unreachable!()
    };
    fields.extend(changes.as_object().unwrap().clone());
    parse_all(&fields)
}

/// Parses a whole `config.json`.
pub(in super::super) fn parse_all(fields: &Map<String, Value>) -> Result<LlamaConfig, String> {
    let family = FAMILIES.iter().find(|family| fields["model_type"] == family.name).unwrap();
    family.parse(&ConfigJson(fields.clone()))
}

fn llama3(low: f64, high: f64) -> Value {
    json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high,
           "original_max_position_embeddings": 8192})
}

#[test]
fn llama_3s_rotation_is_read_from_both_places() {
    let expected = RopeScaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    let mut newer = llama3(1.0, 4.0);
    newer["rope_theta"] = json!(5e5);
    let mut older = llama3(1.0, 4.0);
    older["type"] = older["rope_type"].take();
    for (changes, theta) in [
        (json!({"rope_scaling": llama3(1.0, 4.0), "rope_theta": 5e5}), 5e5),
        (json!({"rope_parameters": newer}), 5e5),
        (json!({"rope_scaling": older}), 1e4),
    ] {
        let config = parse(changes).unwrap();
        assert_eq!((config.rope_scaling, config.rope_theta), (Some(expected), theta));
    }
}

#[test]
fn absent_fields_have_hugging_faces_defaults() {
    let defaults = LlamaConfig {
        model_type: ModelType::Llama,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 4,
        head_dim: 8,
        intermediate_size: 48,
        vocab_size: 64,
        max_position_embeddings: 2048,
        rope_theta: 10_000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: false,
        initializer_range: 0.02,
    };
    assert_eq!(parse(json!({})).unwrap(), defaults);
    // other versions of transformers write the same values in this form
    let same = json!({
        "head_dim": null, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false, "pretraining_tp": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "torch_dtype": "bfloat16",
    });
    assert_eq!(parse(same).unwrap(), defaults);
    let unused = json!({"attention_dropout": 0, "logit_scale": null, "qk_layernorm": false, "_name_or_path": "/a", "top_p": 0.9});
    assert_eq!(parse(unused).unwrap(), defaults);
    assert_eq!(parse(json!({"num_key_value_heads": 2})).unwrap().num_key_value_heads, 2);
}

/// Transformers 5.24 has the expected precedence.
#[test]
fn the_base_of_the_rotation_is_read_in_transformers_order() {
    let section = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    for (changes, theta) in [
        (json!({"rope_theta": 1.0}), 1.0),
        (json!({"rope_theta": 1.0, "rope_parameters": {"rope_type": "default", "rope_theta": 2}}), 2.0),
        (json!({"rope_theta": 1.0, "rope_scaling": section(3.0)}), 3.0),
        (json!({"rope_scaling": section(3.0), "rope_parameters": section(2.0)}), 3.0),
        (json!({"rope_scaling": {"rope_type": "default"}, "rope_parameters": section(2.0), "rope_theta": 1.0}), 1.0),
        (json!({"rope_scaling": {}, "rope_parameters": section(2.0)}), 2.0),
        (json!({"rope_scaling": null, "rope_parameters": {"rope_type": "default"}}), 1e4),
    ] {
        assert_eq!(parse(changes.clone()).unwrap().rope_theta, theta, "{changes}");
    }
    let mut scaled = llama3(1.0, 4.0);
    scaled["rope_theta"] = json!(5e5);
    let config = parse(json!({"rope_scaling": scaled, "rope_theta": 1.0})).unwrap();
    assert_eq!((config.rope_theta, config.rope_scaling.is_some()), (5e5, true));
}

#[test]
fn unsupported_values_are_refused_with_their_field() {
    for (changes, expected) in [
        (json!({"model_type": "qwen3", "attention_bias": true}), "attention_bias is true"),
        (json!({"model_type": "qwen3", "use_sliding_window": 1}), "use_sliding_window is 1"),
        (json!({"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 0}), "sliding_window is 0"),
        (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\""),
        (json!({"attention_bias": true}), "attention_bias is true"),
        (json!({"mlp_bias": true}), "mlp_bias is true"),
        (json!({"pretraining_tp": 2}), "pretraining_tp is 2"),
        (json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), "rope_scaling.type is \"linear\""),
        (
            json!({"rope_scaling": {"factor": 2.0}}),
            "rope_scaling has the field factor, which the default rotary embedding does not support: {\"factor\":2.0}",
        ),
        (json!({"rope_parameters": {"rope_type": "yarn"}}), "rope_parameters.rope_type is \"yarn\""),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}),
            "rope_scaling.rope_type is \"yarn\", and this trainer supports only \"default\" and \"llama3\"",
        ),
        (json!({"rope_scaling": 2}), "rope_scaling is 2, expected an object"),
        (json!({"rope_scaling": {"rope_type": "default", "rope_theta": "big"}}), "rope_scaling: rope_theta is \"big\""),
        (
            json!({"rope_scaling": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}),
            "rope_scaling.partial_rotary_factor",
        ),
        (
            json!({"rope_scaling": llama3(1.0, 4.0), "original_max_position_embeddings": 4096}),
            "original_max_position_embeddings is 8192 in this object and 4096 at the top level",
        ),
        (json!({"layer_types": ["full_attention", "sliding_attention"]}), "layer_types has \"sliding_attention\""),
        (json!({"layer_types": "full_attention"}), "layer_types is \"full_attention\", expected a list"),
        (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1, and this trainer supports only 0"),
        (json!({"logit_scale": 0.5}), "logit_scale is 0.5, and this trainer does not support this field"),
        (json!({"auto_map": {"AutoModel": "m.Model"}}), "auto_map is {"),
        (json!({"rope_parameters": {"rope_type": "llama3"}}), "rope_parameters: lacks factor"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "beta": 1}}),
            "has the field beta, which the llama3 rotary embedding does not support",
        ),
        (json!({"rope_scaling": llama3(4.0, 4.0)}), "rope_scaling: low_freq_factor is 4, expected a number below"),
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
        (json!({"model_type": "qwen2", "num_key_value_heads": 4}), &["modelType is Llama here and Qwen2 there"][..]),
        (json!({"hidden_size": 64, "head_dim": 8}), &["hiddenSize is 32 here and 64 there"]),
        (json!({"num_hidden_layers": 3}), &["numHiddenLayers is 2 here and 3 there"]),
        (json!({"num_key_value_heads": 2}), &["numKeyValueHeads is 4 here and 2 there"]),
        (json!({"head_dim": 16}), &["headDim is 8 here and 16 there"]),
        (json!({"intermediate_size": 24}), &["intermediateSize is 48 here and 24 there"]),
        (json!({"vocab_size": 65}), &["vocabSize is 64 here and 65 there"]),
        (json!({"rope_theta": 5e5}), &["ropeTheta is 10000 here and 500000 there"]),
        (
            json!({"rope_scaling": llama3(1.0, 4.0)}),
            &["rope_scaling is none here and llama3 (factor 8, 1 to 4, from 8192) there"],
        ),
        (json!({"rms_norm_eps": 1e-5}), &["rmsNormEps is 0.000001 here and 0.00001 there"]),
        (json!({"tie_word_embeddings": true}), &["tieWordEmbeddings is false here and true there"]),
        (json!({"max_position_embeddings": 16, "initializer_range": 0.1}), &[]),
        // these differences do not change the shapes of the tensors
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
    let families = FAMILIES.iter().map(|family| json!({"model_type": family.name, "num_key_value_heads": 2}));
    let models = families.chain([json!({"rope_scaling": llama3(1.0, 4.0)})]);
    for config in models.map(|changes| parse(changes).unwrap()).chain([config]) {
        assert_eq!(parse_all(config.to_json().as_object().unwrap()).unwrap(), config);
    }
}

#[test]
fn a_checkpoints_config_keeps_what_its_source_says() {
    let source = json!({
        "model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "vocab_size": 64, "num_key_value_heads": 2, "architectures": ["Other"],
        "bos_token_id": 7, "eos_token_id": [3, 5], "pad_token_id": null, "attention_dropout": 0.0, "use_cache": true,
        "transformers_version": "4.51.0", "dtype": "bfloat16", "sliding_window": 16,
        "use_sliding_window": true, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "_name_or_path": "x",
    });
    let fields = source.as_object().unwrap();
    let config = parse_all(fields).unwrap();
    let written = with_kept_fields(Some(fields), config.to_json());
    for kept in [
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_dropout",
        "use_cache",
        "transformers_version",
        "dtype",
    ] {
        assert_eq!(written.get(kept), source.get(kept), "{kept}");
    }
    // `torch_dtype`, the older name of `dtype`, with a value and with null
    for (dtype, expected) in [(json!("bfloat16"), json!("bfloat16")), (json!(null), json!("float32"))] {
        let older = Map::from_iter([("torch_dtype".to_owned(), dtype), ("model_type".to_owned(), json!("llama"))]);
        assert_eq!(with_kept_fields(Some(&older), config.to_json())["torch_dtype"], expected);
    }
    assert_eq!(written["architectures"], json!(["Qwen2ForCausalLM"]));
    assert_eq!(written.get("torch_dtype"), None);
    assert_eq!((&written["rope_theta"], written.get("rope_parameters")), (&json!(5e5), None));
    assert_eq!(parse_all(written.as_object().unwrap()).unwrap(), config);
    // a Mistral becomes a Llama, which has no window
    let mistral = json!({
        "model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention"], "intermediate_size": 48, "vocab_size": 64,
    });
    let fields = mistral.as_object().unwrap();
    let config = parse_all(fields).unwrap();
    let written = with_kept_fields(Some(fields), config.to_json());
    assert_eq!((written.get("sliding_window"), written.get("layer_types")), (None, None));
    assert_eq!(parse_all(written.as_object().unwrap()).unwrap(), config);
    let own = config.to_json();
    assert_eq!(with_kept_fields(None, own.clone()), own);
}

#[test]
fn lengths_are_written_as_whole_numbers() {
    // earlier versions wrote the length with a decimal point
    let mut earlier = llama3(1.0, 4.0);
    earlier["original_max_position_embeddings"] = json!(8192.0);
    let config = parse(json!({"rope_scaling": earlier})).unwrap();
    let written = config.to_json();
    assert_eq!(written["rope_scaling"]["original_max_position_embeddings"].to_string(), "8192");
}

#[test]
fn sizes_whose_products_do_not_fit_into_64_bits_are_refused() {
    let fields = "hidden_size num_hidden_layers num_attention_heads head_dim intermediate_size vocab_size max_position_embeddings";
    for field in fields.split(' ') {
        let refused = parse(json!({ field: 1_u64 << 32 })).unwrap_err();
        assert!(refused.starts_with(&format!("{field} is 4294967296, expected at most ")), "{refused}");
    }
}
