//! Tests the effect of each key of a tokenizer's files. The tables contain the keys of eight model families (GPT-2,
//! Llama 2 and 3, Qwen, Mistral, Gemma, Phi-3, DeepSeek). If a key is not in the tables, find out its effect, and add
//! the key.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stagecoach_data::Tokenizer;

use crate::common::*;

/// The effect of a change of a key's value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    /// Texts get other ids, or documents begin, end or are padded with other tokens.
    Used,
    /// The key has no effect on ids. A checkpoint keeps the key unchanged.
    Kept,
    /// The tokenizer is refused with this message.
    Refused(&'static str),
}

use Effect::{Kept, Refused, Used};

/// A text whose ids change with each key that has an effect on the ids.
const TEXT: &str = "Caf\u{e9} na\u{ef}ve  x<a> y <s> \u{6f22}";

/// Returns a byte-level BPE with added tokens: `<s>` 259, `</s>` 260, `<a>` 261 and `<pad>` 262.
fn tokenizer() -> Value {
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut characters: Vec<char> = alphabet.into_iter().collect();
    characters.sort_unstable();
    let mut vocab: serde_json::Map<String, Value> =
        characters.iter().enumerate().map(|(id, character)| (character.to_string(), id.into())).collect();
    vocab.extend([("na", 256), ("\u{120}x", 257), ("n##a", 258)].map(|(token, id)| (token.to_owned(), id.into())));
    let added = [("<s>", 259), ("</s>", 260), ("<a>", 261), ("<pad>", 262)].map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": content != "<a>"})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["n", "a"], ["\u{120}", "x"]]},
    })
}

/// Returns configuration files that name only the tokens that begin, end and pad documents.
fn configs() -> [(&'static str, Value); 2] {
    [
        ("tokenizer_config.json", json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})),
        ("generation_config.json", json!({})),
    ]
}

/// Returns the ids of texts with a tokenizer of these files, or the reason why the tokenizer is refused.
fn outcome(tokenizer: &Value, configs: &[(&str, Value)]) -> Result<String, String> {
    let volume = TestVolume::new(&[]);
    let path = volume.write("keys/tokenizer.json", tokenizer.to_string().as_bytes());
    for (name, config) in configs {
        volume.write(&format!("keys/{name}"), config.to_string().as_bytes());
    }
    let made = |tokenizer: Tokenizer| {
        let special = tokenizer.special_tokens();
        format!("{:?} {:?} {:?} {:?}", special.bos, special.eos, special.pad, tokenizer.encode(TEXT).unwrap())
    };
    let [text, parsed] = [Tokenizer::load(&path), Tokenizer::load_parsing(&path)].map(|loaded| loaded.map(made));
    Ok(format!("{} {}", text.map_err(|error| error.to_string())?, parsed.map_err(|error| error.to_string())?))
}

fn effect(before: &str, after: &Result<String, String>, expected: Effect) -> bool {
    match (after, expected) {
        (Ok(after), Used) => after != before,
        (Ok(after), Kept) => after == before,
        (Err(after), Refused(words)) => after.contains(words),
        _ => false,
    }
}

/// Returns keys of `tokenizer.json`: the path, another value, and the effect.
fn of_tokenizer() -> Vec<(&'static str, Value, Effect)> {
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [259], "tokens": ["<s>"]}}});
    let padding = json!({"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 262,
        "pad_type_id": 0, "pad_token": "<pad>"});
    let truncation = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    vec![
        ("version", json!("2.0"), Refused("this tokenizer.json can't be read")),
        // the job sets the length of sequences
        ("truncation", truncation, Kept),
        ("padding", padding, Kept),
        ("added_tokens/2/content", json!("<b>"), Used),
        // the tokenizers library numbers the tokens itself, after the vocabulary
        ("added_tokens/2/id", json!(304), Kept),
        ("added_tokens/2/special", json!(true), Used),
        ("added_tokens/2/lstrip", json!(true), Kept),
        ("added_tokens/2/rstrip", json!(true), Used),
        ("added_tokens/2/single_word", json!(true), Used),
        ("added_tokens/2/normalized", json!(true), Kept),
        ("normalizer", json!({"type": "Lowercase"}), Used),
        (
            "pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            Used,
        ),
        // documents begin with the token that the configurations name
        ("post_processor", template, Kept),
        ("decoder", json!({"type": "Fuse"}), Kept),
        ("model/type", json!("WordLevel"), Refused("this tokenizer.json can't be read")),
        ("model/dropout", json!(0.1), Refused("model.dropout is 0.1")),
        ("model/dropout", json!(0.0), Kept),
        // every byte has a token, so no character is unknown
        ("model/unk_token", json!("<a>"), Kept),
        ("model/fuse_unk", json!(true), Kept),
        ("model/byte_fallback", json!(true), Kept),
        ("model/continuing_subword_prefix", json!("##"), Refused("this tokenizer.json can't be read")),
        ("model/end_of_word_suffix", json!("</w>"), Used),
        ("model/ignore_merges", json!(true), Kept),
        ("model/vocab/y", json!(299), Used),
        ("model/merges", json!([]), Used),
    ]
}

/// Returns keys of `tokenizer_config.json`: the key, another value, and the effect.
fn of_tokenizer_config() -> Vec<(&'static str, Value, Effect)> {
    let token = |content: &str| json!({"content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true});
    vec![
        ("bos_token", json!("</s>"), Used),
        ("bos_token", json!(null), Used),
        ("bos_token", token("<s>"), Kept),
        ("bos_token", json!("<missing>"), Refused("names <missing> as bos_token")),
        ("eos_token", json!("<a>"), Used),
        ("eos_token", json!("<missing>"), Refused("names <missing> as eos_token")),
        ("pad_token", json!("<a>"), Used),
        ("add_bos_token", json!(false), Used),
        ("add_bos_token", json!(true), Kept),
        // a document always ends with the end-of-text token
        ("add_eos_token", json!(false), Kept),
        ("added_tokens_decoder", json!({"261": token("<a>")}), Kept),
        ("added_tokens_decoder", json!({"5": token("<a>")}), Refused("has it with the id 261")),
        ("added_tokens_decoder", json!({"400": token("<new>")}), Refused("has no such token")),
        // the values in tokenizer.json apply
        ("add_prefix_space", json!(false), Kept),
        ("additional_special_tokens", json!(["<a>"]), Kept),
        ("extra_special_tokens", json!({}), Kept),
        ("unk_token", json!("<a>"), Kept),
        ("mask_token", json!("<a>"), Kept),
        ("sep_token", json!("<a>"), Kept),
        ("cls_token", json!("<a>"), Kept),
        ("legacy", json!(false), Kept),
        ("sp_model_kwargs", json!({}), Kept),
        ("from_slow", json!(true), Kept),
        // the job decides this with data.specialTokens
        ("split_special_tokens", json!(true), Kept),
        // the job sets the length of sequences
        ("model_max_length", json!(2), Kept),
        ("max_length", json!(2), Kept),
        ("stride", json!(1), Kept),
        ("truncation_side", json!("left"), Kept),
        ("truncation_strategy", json!("longest_first"), Kept),
        ("padding_side", json!("left"), Kept),
        ("pad_to_multiple_of", json!(8), Kept),
        ("pad_token_type_id", json!(0), Kept),
        // keys for decoding, for conversations, and for other tools
        ("clean_up_tokenization_spaces", json!(true), Kept),
        ("spaces_between_special_tokens", json!(false), Kept),
        ("errors", json!("replace"), Kept),
        ("chat_template", json!("{{ messages }}"), Kept),
        ("use_default_system_prompt", json!(false), Kept),
        ("auto_map", json!({}), Kept),
        ("backend", json!("tokenizers"), Kept),
        ("is_local", json!(true), Kept),
        ("model_input_names", json!(["input_ids"]), Kept),
        ("name_or_path", json!("x"), Kept),
        ("processor_class", json!("X"), Kept),
        ("tokenizer_class", json!("LlamaTokenizer"), Kept),
        ("tokenizer_file", json!(null), Kept),
        ("model_specific_special_tokens", json!({}), Kept),
        ("return_token_type_ids", json!(false), Kept),
        ("trust_remote_code", json!(false), Kept),
        ("tool_parser_type", json!("x"), Kept),
    ]
}

fn of_generation_config() -> Vec<(&'static str, Value, Effect)> {
    let mut rows = vec![("eos_token_id", json!([260, 261]), Used), ("eos_token_id", json!(260), Kept)];
    let kept = [
        "_from_model_config",
        "bos_token_id",
        "cache_implementation",
        "do_sample",
        "max_length",
        "max_new_tokens",
        "pad_token_id",
        "repetition_penalty",
        "temperature",
        "top_k",
        "top_p",
        "transformers_version",
    ];
    rows.extend(kept.map(|key| (key, json!(1), Kept)));
    rows
}

#[test]
fn each_key_of_a_tokenizers_files_has_the_effect_of_its_table() {
    let (plain, configs) = (tokenizer(), configs());
    let before = outcome(&plain, &configs).unwrap();
    let mut wrong = Vec::new();
    let mut compare = |key: String, value: &Value, expected: Effect, after: Result<String, String>| {
        if !effect(&before, &after, expected) {
            wrong.push(format!("{key} {value}: {expected:?}, but {after:?}"));
        }
    };
    for (path, value, expected) in of_tokenizer() {
        let mut changed = plain.clone();
        *changed.pointer_mut(&format!("/{path}")).unwrap_or_else(|| panic!("{path}")) = value.clone();
        compare(format!("tokenizer.json {path}"), &value, expected, outcome(&changed, &configs));
    }
    for (file, rows) in [of_tokenizer_config(), of_generation_config()].into_iter().enumerate() {
        for (key, value, expected) in rows {
            let mut changed = configs.clone();
            changed[file].1[key] = value.clone();
            compare(format!("{} {key}", configs[file].0), &value, expected, outcome(&plain, &changed));
        }
    }
    assert!(wrong.is_empty(), "{before}\n{}", wrong.join("\n"));
}

#[test]
fn every_key_of_the_imitated_tokenizer_has_a_row() {
    let rows = of_tokenizer();
    let known: BTreeSet<&str> = rows.iter().map(|(path, ..)| *path).collect();
    let has_row = |path: &str| known.iter().any(|known| *known == path || known.starts_with(&format!("{path}/")));
    let tokenizer = tokenizer();
    for key in tokenizer.as_object().unwrap().keys() {
        assert!(has_row(key), "{key}");
    }
    for key in tokenizer["model"].as_object().unwrap().keys() {
        assert!(has_row(&format!("model/{key}")), "model/{key}");
    }
    for key in tokenizer["added_tokens"][0].as_object().unwrap().keys() {
        assert!(has_row(&format!("added_tokens/2/{key}")), "added_tokens/{key}");
    }
}
