//! Tests that the pieces of a text have the ids of the whole text.

use super::*;
use crate::tokenizer::Tokenizer;
use crate::tokenizer_training::{MIN_VOCAB_SIZE, train_bpe};
use proptest::prelude::*;
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::of_bytes(&trained()));
/// A tokenizer with the normalizer of Qwen 2 and the pre-tokenizers of Llama 3. The pattern of Qwen 2 differs from the
/// pattern of Llama 3 only in the treatment of digits.
static LLAMA_3: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut json: serde_json::Value = serde_json::from_slice(&trained()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    json["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": crate::tokenizer::LLAMA_3_PATTERN}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    Tokenizer::of_bytes(json.to_string().as_bytes())
});

fn trained() -> Vec<u8> {
    let text = "the cat's  the.\n\nthe the 12 12 cat's!\n cat's\r\n\r\n  the  12 é é\u{3000}\u{3000}é ".repeat(4);
    train_bpe(MIN_VOCAB_SIZE + 60, [text].into_iter()).unwrap()
}

/// A text can't be split at white space that an added token may absorb.
#[test]
fn no_split_where_an_added_token_takes_white_space() {
    let mut json: serde_json::Value = serde_json::from_slice(&trained()).unwrap();
    let split = |json: &serde_json::Value| Tokenizer::of_bytes(json.to_string().as_bytes()).split();
    for key in ["lstrip", "rstrip"] {
        let mut token = json["added_tokens"][0].clone();
        token["content"] = "mask".into();
        token["id"] = 1000.into();
        token["special"] = false.into();
        json["added_tokens"].as_array_mut().unwrap().truncate(3);
        json["added_tokens"].as_array_mut().unwrap().push(token.clone());
        assert_eq!(split(&json), SplitPoints::BeforeWhitespace);
        token[key] = true.into();
        json["added_tokens"][3] = token;
        assert_eq!(split(&json), SplitPoints::Never, "{key}");
    }
}

#[test]
fn splits_before_the_last_white_space_that_follows_something() {
    let last = |text| last_split(text, SplitPoints::BeforeWhitespace);
    assert_eq!(last("one two  three"), Some(7));
    assert_eq!(last("one two  "), Some(7));
    assert_eq!(last("é\u{3000}x"), Some(2));
    assert_eq!(last("  one"), None);
    assert_eq!(last("one"), None);
    assert_eq!(last(""), None);
    let last = |text| last_split(text, SplitPoints::BeforeSpaces);
    assert_eq!(last("one two.\n three"), Some(3));
    assert_eq!(last("one \ntwo"), Some(3));
    assert_eq!(last("one\r\ntwo"), None);
    assert_eq!(last_split("one two", SplitPoints::Never), None);
    let last = |text| last_split(text, SplitPoints::BeforeSpace);
    assert_eq!(last("one two  three"), Some(7));
    assert_eq!(last("one two\tthree\n four\u{3000}"), Some(3));
    assert_eq!(last("one two\u{2581} three"), Some(3));
}

/// Returns the definition of a tokenizer with the pre-tokenizer of SentencePiece's BPE models. `changes` maps JSON
/// pointers into the definition to new values.
fn of_sentence_piece(changes: serde_json::Value) -> serde_json::Value {
    let words =
        ["\u{2581}the", "\u{2581}cat", "'s", "\u{2581}\u{2581}\u{2581}\u{2581}", "\n\n", "\u{2581}e\u{301}", "12"];
    let (mut vocab, mut merges) =
        (vec!["<s>".to_owned(), "</s>".into(), "<unk>".into(), "\u{2581}".into()], Vec::new());
    for word in words {
        let characters: Vec<String> = word.chars().map(String::from).collect();
        for end in 1..=characters.len() {
            let (start, last) = (characters[..end - 1].concat(), &characters[end - 1]);
            for token in [last.clone(), format!("{start}{last}")] {
                if !vocab.contains(&token) {
                    vocab.push(token);
                }
            }
            if end > 1 && !merges.contains(&serde_json::json!([start, last])) {
                merges.push(serde_json::json!([start, last]));
            }
        }
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let special = |id: usize, name: &str| {
        serde_json::json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let mut definition = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
        "added_tokens": [special(0, "<s>"), special(1, "</s>")], "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    });
    for (pointer, value) in changes.as_object().unwrap() {
        *definition.pointer_mut(pointer).unwrap() = value.clone();
    }
    definition
}

/// Tokenizers of SentencePiece whose texts may be split, each in the form of an exported model.
static SENTENCE_PIECE: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let spaces = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let mut changes = vec![
        serde_json::json!({"/normalizer": {"type": "NFC"}}),
        // the form of Gemma
        serde_json::json!({"/normalizer": spaces, "/pre_tokenizer":
            {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}}),
        serde_json::json!({"/normalizer": spaces, "/pre_tokenizer": null}),
        serde_json::json!({"/pre_tokenizer/split": true, "/model": {"type": "Unigram", "unk_id": 2, "vocab": [
            ["<s>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u{2581}", -2.0], ["\u{2581}the", -3.0], ["t", -4.0],
            ["h", -4.0], ["e", -4.0], ["\u{2581}c", -5.0], ["at", -5.0], ["1", -3.0], ["cat\u{2581}", -1.0]]}}),
    ];
    for scheme in ["first", "always", "never"] {
        for split in [false, true] {
            changes.push(serde_json::json!({"/pre_tokenizer/prepend_scheme": scheme, "/pre_tokenizer/split": split}));
        }
    }
    changes.into_iter().map(|changes| Tokenizer::of_bytes(of_sentence_piece(changes).to_string().as_bytes())).collect()
});

#[test]
fn texts_of_sentence_piece_are_split_where_no_token_crosses_a_space() {
    let split = |changes| Tokenizer::of_bytes(of_sentence_piece(changes).to_string().as_bytes()).split();
    assert_eq!(split(serde_json::json!({})), SplitPoints::BeforeSpace);
    let token = serde_json::json!({"id": 1000, "content": "a\u{2581}b", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": false});
    let crossing = serde_json::json!([["t", "h"], ["\u{2581}", "\u{2581}"], ["s", "\u{2581}"]]);
    let vocab = serde_json::json!({"<s>": 0, "</s>": 1, "<unk>": 2, "\u{2581}": 3, "t": 4, "h": 5, "s": 6, "th": 7,
        "\u{2581}\u{2581}": 8, "s\u{2581}": 9});
    for changes in [
        serde_json::json!({"/model/vocab": vocab, "/model/merges": crossing}),
        serde_json::json!({"/model/ignore_merges": true}),
        serde_json::json!({"/added_tokens/0": token}),
        // the normalizer would put a space before every piece
        serde_json::json!({"/normalizer": {"type": "Prepend", "prepend": "\u{2581}"}}),
        serde_json::json!({"/normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}, "/pre_tokenizer": null}),
    ] {
        assert_eq!(split(changes.clone()), SplitPoints::Never, "{changes}");
    }
    // the pre-tokenizer separates words, so no token crosses a space
    let changes = serde_json::json!({"/model/vocab": vocab, "/model/merges": crossing, "/pre_tokenizer/split": true});
    assert_eq!(split(changes), SplitPoints::BeforeSpace);
}

proptest! {
    #[test]
    fn pieces_have_the_ids_of_the_whole(text in "([a-z']|the|cat's|12|é|[ \n\r\t\u{3000}\u{a0}]){0,40}") {
        let ids = |text: &str| TOKENIZER.encode(text).unwrap();
        prop_assert_eq!(TOKENIZER.split(), SplitPoints::BeforeWhitespace);
        for (end, _) in text.char_indices() {
            if let Some(at) = last_split(&text[..end], SplitPoints::BeforeWhitespace) {
                prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
            }
        }
    }

    #[test]
    fn pieces_have_the_ids_of_the_whole_with_the_pattern_of_llama_3(
        text in "([a-z']|the|cat's|12|é|e\u{301}|[.,!] |[ \n\r\t\u{3000}\u{a0}.!]){0,40}"
    ) {
        let ids = |text: &str| LLAMA_3.encode(text).unwrap();
        prop_assert_eq!(LLAMA_3.split(), SplitPoints::BeforeSpaces);
        for (end, _) in text.char_indices() {
            if let Some(at) = last_split(&text[..end], SplitPoints::BeforeSpaces) {
                prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pieces_have_the_ids_of_the_whole_with_sentence_piece(
        text in "([a-z']|the| the|cat's|12|é|e\u{301}|<s>|[ \n\t\u{3000}\u{2581}]| |  ){0,40}"
    ) {
        for tokenizer in &*SENTENCE_PIECE {
            let ids = |text: &str| tokenizer.encode(text).unwrap();
            prop_assert_eq!(tokenizer.split(), SplitPoints::BeforeSpace);
            for (end, _) in text.char_indices() {
                if let Some(at) = last_split(&text[..end], SplitPoints::BeforeSpace) {
                    prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
                }
            }
        }
    }
}
