//! The keys that a `config.json` may have, with their roles in this trainer. An unlisted key is assumed to select a
//! feature that this trainer lacks, unless its value is null, false or empty, or its name begins with `_`.

use serde_json::{Map, Value, json};

use super::ConfigJson;

/// The role of a key for this trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The trainer reads the key into the model's configuration, or writes it from there. The `config.json` of a
    /// checkpoint has the model's value.
    Used,
    /// The key has no effect on training. The `config.json` of a checkpoint keeps the value from the `config.json` with
    /// which the job began (the source).
    Kept,
    /// Like [`Role::Kept`], but the trainer accepts only this number.
    Only(i64),
    /// Like [`Role::Only`], for a boolean.
    OnlyIf(bool),
    /// The key selects a feature that this trainer lacks.
    Refused,
}

use Role::{Kept, Only, OnlyIf, Refused, Used};

/// The kept keys that are special tokens, names, or settings of other tools.
const KEPT: &str = "
    bos_token_id eos_token_id pad_token_id sep_token_id tokenizer_class model_max_length transformers_version
    transformers.js_config unsloth_fixed unsloth_version use_cache use_bfloat16 output_attentions
    output_hidden_states return_dict torchscript is_decoder is_llama_config max_window_layers id2label label2id
    problem_type finetuning_task task_specific_params prefix gradient_checkpointing name_or_path
    tokenizer_model_max_length tokenizer_padding_side neftune_noise_alpha";

/// The settings of text generation, which older versions of transformers write into `config.json`.
const GENERATION: &str = "
    max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings do_sample num_beams
    num_beam_groups penalty_alpha dola_layers cache_implementation cache_config max_cache_len return_legacy_cache
    temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff diversity_penalty repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    force_words_ids renormalize_logits constraints forced_bos_token_id forced_eos_token_id forced_decoder_ids
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens sequence_bias
    token_healing guidance_scale low_memory watermarking_config num_return_sequences output_scores output_logits
    return_dict_in_generate decoder_start_token_id is_assistant num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit
    assistant_lookbehind target_lookbehind assistant_ensemble_weight speculation_type compile_config disable_compile
    continuous_batching_config prefill_chunk_size use_mtp";

const NUMBERS: [(&str, i64); 9] = [
    ("attention_dropout", 0),
    ("attn_pdrop", 0),
    ("chunk_size_feed_forward", 0),
    ("embd_pdrop", 0),
    ("hidden_dropout", 0),
    ("resid_pdrop", 0),
    ("dropout", 0),
    ("partial_rotary_factor", 1),
    ("pretraining_tp", 1),
];

const TRUTHS: [(&str, bool); 8] = [
    ("add_cross_attention", false),
    ("is_causal", true),
    ("is_encoder_decoder", false),
    ("rope_interleaved", false),
    ("tie_encoder_decoder", false),
    ("use_bidirectional_attention", false),
    ("use_mrope", false),
    ("use_qk_norm", false),
];

/// Returns the role of a key in the models that use the keys `used`; [`Role::Refused`] for unknown keys.
pub(crate) fn role(key: &str, used: &str) -> Role {
    let (number, truth) = (NUMBERS.iter().find(|(name, _)| *name == key), TRUTHS.iter().find(|(name, _)| *name == key));
    match (number, truth) {
        _ if has(used, key) => Used,
        (Some((_, number)), _) => Only(*number),
        (_, Some((_, truth))) => OnlyIf(*truth),
        _ if has(KEPT, key) || has(GENERATION, key) || key.starts_with('_') => Kept,
        _ => Refused,
    }
}

fn has(keys: &str, key: &str) -> bool {
    keys.split_whitespace().any(|known| known == key)
}

impl ConfigJson {
    /// Refuses every key besides `used` whose value selects a variant that this trainer does not implement.
    pub(crate) fn check_keys(&self, used: &str) -> Result<(), String> {
        if let Some(found) = self.get("quantization_config") {
            return Err(format!("quantization_config is {found}, and this trainer reads plain weights only"));
        }
        self.0.iter().try_for_each(|(key, value)| match role(key, used) {
            Only(number) => self.only(key, &[json!(number)]),
            OnlyIf(truth) => self.only(key, &[json!(truth)]),
            Refused if !is_nothing(value) => Err(format!(
                "{key} is {value}, and this trainer does not support this field: if the results of the model do not \
                 depend on the field, remove it"
            )),
            Used | Kept | Refused => Ok(()),
        })
    }

    /// Refuses a field with a value that is not in `expected`. The first entry is the supported value, and the other
    /// entries are its synonyms.
    pub(crate) fn only(&self, field: &str, expected: &[Value]) -> Result<(), String> {
        let is_same = |found: &Value, expected: &Value| {
            found == expected || found.as_f64().is_some_and(|found| Some(found) == expected.as_f64())
        };
        match (self.get(field), expected) {
            (Some(found), [first, ..]) if !expected.iter().any(|expected| is_same(found, expected)) => {
                Err(format!("{field} is {found}, and this trainer supports only {first}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a value selects no feature.
fn is_nothing(value: &Value) -> bool {
    [json!(null), json!(false), json!({}), json!([])].contains(value)
}

/// The fields that limit the length of a text. A checkpoint keeps them if it has the model type of its source, so that
/// other tools apply the same limit to the checkpoint.
const WINDOW: [&str; 3] = ["layer_types", "sliding_window", "use_sliding_window"];

/// The older and the newer name of the field with the dtype in which tools load the weights. A checkpoint keeps the
/// dtype of its source, although the checkpoint's weights are fp32. The model's field applies only if the source states
/// no dtype.
const DTYPE: [&str; 2] = ["torch_dtype", "dtype"];

/// Returns the kept fields of `source`, followed by the model's fields `own`. `source` is the file of a model that uses
/// the keys `used`.
pub(crate) fn with_kept_fields(source: &Map<String, Value>, own: Value, used: &str) -> Value {
    let Value::Object(own) = &own else { return own };
    // a Mistral is written as a Llama, which computes the same results on texts that fit into the Mistral's window
    let is_same_model = source.get("model_type") == own.get("model_type");
    let states_dtype = DTYPE.iter().any(|key| source.get(*key).is_some_and(|dtype| !dtype.is_null()));
    let is_dtype = |key: &str| states_dtype && DTYPE.contains(&key);
    let is_kept = |key: &str| role(key, used) != Used || is_same_model && WINDOW.contains(&key) || is_dtype(key);
    let kept = source.iter().filter(|(key, _)| is_kept(key)).chain(own.iter().filter(|(key, _)| !is_dtype(key)));
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::families;

    /// The keys that transformers writes into every `config.json`, in addition to [`GENERATION`].
    const COMMON: &str = "
        _name_or_path architectures chunk_size_feed_forward dtype id2label is_encoder_decoder label2id model_type
        output_attentions output_hidden_states problem_type return_dict torch_dtype transformers_version use_cache
        bos_token_id eos_token_id pad_token_id tie_word_embeddings vocab_size initializer_range";
    /// The keys that occur only in models other than Llamas.
    const OTHERS: [(&str, &str); 4] = [
        (
            "gpt2",
            "activation_function layer_norm_epsilon n_ctx n_embd n_head n_inner n_layer n_positions
            reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights summary_activation
            summary_first_dropout summary_proj_to_labels summary_type summary_use_proj",
        ),
        (
            "gemma",
            "attn_logit_softcapping final_logit_softcapping hidden_activation query_pre_attn_scalar
            rope_local_base_freq sliding_window_pattern",
        ),
        ("phi3", "auto_map embed_dropout"),
        (
            "deepseek_v3",
            "aux_loss_alpha ep_size first_k_dense_replace kv_lora_rank moe_intermediate_size moe_layer_freq
            n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok num_nextn_predict_layers
            output_router_logits q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim quantization_config
            rope_interleave routed_scaling_factor scoring_func seq_aux topk_group topk_method v_head_dim",
        ),
    ];

    #[test]
    fn every_key_has_a_role() {
        for used in families().map(|family| family.keys()) {
            for key in COMMON.split_whitespace().chain(GENERATION.split_whitespace()) {
                assert_ne!(role(key, used), Refused, "{key}");
            }
        }
        let used = families().find(|family| family.model_type() == "llama").unwrap().keys();
        for key in OTHERS.iter().flat_map(|(_, keys)| keys.split_whitespace()) {
            assert_eq!(role(key, used), Refused, "{key}");
        }
    }

    /// A key in two lists would have two roles.
    #[test]
    fn no_key_has_two_roles() {
        let names: Vec<&str> =
            NUMBERS.iter().map(|(name, _)| *name).chain(TRUTHS.iter().map(|(name, _)| *name)).collect();
        for used in families().map(|family| family.keys()) {
            let lists = [used, KEPT, GENERATION].into_iter().flat_map(str::split_whitespace);
            let mut keys: Vec<&str> = lists.chain(names.iter().copied()).collect();
            let all = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), all);
        }
    }
}
