//! Small tokenizers in the form of `tokenizer.json`.

use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Words that are one token each. Some words are parts of special tokens, or consist of a part of a special token and
/// neighbouring text.
const WORDS: [&str; 23] = [
    "  ",
    "Hello",
    " Hello",
    " world",
    " the",
    "the",
    " you",
    "user",
    "assistant",
    "system",
    "model",
    "<|",
    "|>",
    "|>\n",
    "im_",
    "end",
    "INST",
    "[/",
    "</",
    "\n\n",
    " 4",
    ":\n",
    ". ",
];

/// Returns a byte-level BPE. The pre-tokenizer splits a text by the regular expression `pattern`, or by ByteLevel's own
/// expression if `pattern` is `None`. `added` has the added tokens, each with its kind: `special`, `ordinary` or
/// `strips right`.
pub fn byte_level(pattern: Option<&str>, trims_offsets: bool, added: &[(String, &str)]) -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort();
    let letter = |character: char| match character {
        ' ' => 'Ġ',
        '\n' => 'Ċ',
        other => other,
    };
    let words = WORDS.map(|word| word.chars().map(letter).collect::<String>());
    let (vocab, merges) = merged(alphabet.iter().map(char::to_string).collect(), &words);
    let byte_level = |uses_regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trims_offsets, "use_regex": uses_regex});
    let pre_tokenizer = match pattern {
        Some(pattern) => {
            let split =
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
        }
        None => byte_level(true),
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added_tokens(vocab.len(), added),
        "normalizer": pattern.map(|_| json!({"type": "NFC"})),
        "pre_tokenizer": pre_tokenizer, "post_processor": byte_level(true), "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

/// Returns a BPE whose vocabulary has `▁` for spaces, and a token for each byte of unknown characters. The first tokens
/// are `<unk>` and the first two tokens of `added`.
pub fn with_metaspace(normalizer: Value, pre_tokenizer: Value, added: &[(String, &str)]) -> Value {
    let bytes = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>"));
    let ascii = (' '..='~').filter(|&letter| letter != ' ').chain(['▁', '\n', 'é']).map(String::from);
    let (control, rest) = added.split_at(2);
    let first = ["<unk>".to_owned(), control[0].0.clone(), control[1].0.clone()];
    let words = WORDS.map(|word| word.replace(' ', "▁"));
    let (vocab, merges) = merged(first.iter().cloned().chain(bytes).chain(ascii).collect(), &words);
    let mut tokens = added_tokens(0, &[("<unk>".to_owned(), "special"), control[0].clone(), control[1].clone()]);
    tokens.extend(added_tokens(vocab.len(), rest));
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": tokens,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

/// Returns a Unigram model whose pieces include its special tokens.
pub fn unigram(added: &[&str]) -> Value {
    let special = ["<unk>"].iter().chain(added).map(|token| json!([token, 0.0]));
    let letters = ('!'..='~').chain(['▁']).map(|letter| json!([letter.to_string(), -5.0]));
    let vocab: Vec<Value> = special.chain(letters).chain([json!(["▁Hello", -3.0])]).collect();
    let tokens: Vec<_> = ["<unk>"].iter().chain(added).map(|token| (token.to_string(), "special")).collect();
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens(0, &tokens),
        "normalizer": null, "pre_tokenizer": metaspace, "post_processor": null, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    })
}

fn added_tokens(first_id: usize, added: &[(String, &str)]) -> Vec<Value> {
    let token = |(index, (content, kind)): (usize, &(String, &str))| {
        json!({
            "id": first_id + index, "content": content, "single_word": false, "lstrip": false, "rstrip": *kind == "strips right",
            "normalized": false, "special": *kind != "ordinary",
        })
    };
    added.iter().enumerate().map(token).collect()
}

/// Returns a vocabulary with a token for each prefix of a word, and the merges that make these tokens.
fn merged(single: Vec<String>, words: &[String]) -> (Map<String, Value>, Vec<[String; 2]>) {
    let mut vocab: Map<String, Value> = single.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let mut merges = Vec::new();
    for word in words {
        for (position, letter) in word.char_indices().skip(1) {
            let end = position + letter.len_utf8();
            if !vocab.contains_key(&word[..end]) {
                vocab.insert(word[..end].to_owned(), vocab.len().into());
                merges.push([word[..position].to_owned(), letter.to_string()]);
            }
        }
    }
    (vocab, merges)
}
