//! Splits long texts at positions where the ids of the pieces equal the ids of the whole text. Limits the size of text
//! that can't be split.

use super::{BadRecord, BadRecordReason, Content, CorpusFile, Cursor, Piece, PieceHandler};
use crate::error::DataError;

/// The positions at which a text may be split such that the pieces have the ids of the whole text. At each of them,
/// white space follows another character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Nowhere: the tokenizer gets whole documents.
    Never,
    /// Before any white space.
    BeforeWhitespace,
    /// Before white space that is not a line end. A line end may belong to the characters before it.
    BeforeSpaces,
    /// Before the space U+0020, the only white space that separates words for SentencePiece.
    BeforeSpace,
}

/// The character that stands for a space in the vocabularies of SentencePiece.
pub(crate) const METASPACE: char = '\u{2581}';

/// The largest size in bytes of a text that can't be split and is tokenised in one piece. A tokenizer's working memory
/// is about a hundred times the size of its text.
pub(crate) const MAX_PIECE_BYTES: usize = 16 << 20;

/// Approximate size of a piece: small enough to spread over processors, large enough for a negligible cost per piece.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// The last position at which `text` may be split.
pub(super) fn last_split(text: &str, split: Split) -> Option<usize> {
    if split == Split::Never {
        return None;
    }
    let mut after = None;
    for (at, character) in text.char_indices().rev() {
        match (character.is_whitespace(), after) {
            // this character is a space to the tokenizer, and spaces may be one token
            (false, _) if split == Split::BeforeSpace && character == METASPACE => after = None,
            (false, Some(space)) => return Some(space),
            (true, _) => {
                let may = match split {
                    Split::Never => false,
                    Split::BeforeWhitespace => true,
                    Split::BeforeSpaces => !matches!(character, '\r' | '\n'),
                    Split::BeforeSpace => character == ' ',
                };
                after = may.then_some(at);
            }
            (false, None) => {}
        }
    }
    None
}

/// Passes on the text of one record, which is a whole document, in pieces if it may be split. `resume_at` and
/// `bytes_read` hold the values after the record.
///
/// # Errors
/// `TooLong`, or the error of `on_piece`.
pub(super) fn emit_record(
    corpus_file: &CorpusFile,
    text: &str,
    split: Split,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let mut rest = text;
    let mut wanted = PIECE_BYTES;
    while split != Split::Never && rest.len() > 2 * wanted {
        let end = (0..=wanted).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(0);
        let Some(at) = last_split(&rest[..end], split) else {
            wanted *= 2;
            continue;
        };
        wanted = PIECE_BYTES;
        let content = Content::Text(&rest[..at]);
        on_piece(Piece { content, record: resume_at.record, is_last: false, resume_at: None, bytes_read })?;
        rest = &rest[at..];
    }
    check_length(rest.len(), split, || {
        let number = corpus_file.format.first_unit + resume_at.record - 1;
        format!("{}, {} {number}", corpus_file.path.display(), corpus_file.format.unit)
    })?;
    let content = Content::Text(rest);
    on_piece(Piece { content, record: resume_at.record, is_last: true, resume_at: Some(resume_at), bytes_read })
}

/// Passes on that the text of the record after these pieces has lost halves of surrogate pairs, if it has lost any.
///
/// # Errors
/// The error of `on_piece`.
pub(super) fn emit_lone_surrogates(
    count: u64,
    after_record: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    if count == 0 {
        return Ok(());
    }
    let content = Content::LoneSurrogates(count);
    on_piece(Piece { content, record: after_record.record, is_last: false, resume_at: None, bytes_read })
}

/// Passes on a record of the file with index `file` that holds no document.
///
/// # Errors
/// The error of `on_piece`.
pub(super) fn emit_bad_record(
    (reason, error): (BadRecordReason, DataError),
    file: usize,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let content = Content::BadRecord(BadRecord { file, reason, error });
    let record = resume_at.record.max(1);
    on_piece(Piece { content, record, is_last: false, resume_at: Some(resume_at), bytes_read })
}

/// Refuses a text that is too long to be tokenised in one piece.
pub(super) fn check_length(bytes: usize, split: Split, location: impl Fn() -> String) -> Result<(), DataError> {
    if bytes <= MAX_PIECE_BYTES {
        return Ok(());
    }
    let reason = match split {
        Split::Never => "its normalizer, pre-tokenizer or added tokens need whole texts",
        Split::BeforeWhitespace | Split::BeforeSpaces | Split::BeforeSpace => "it splits a text only at white space",
    };
    Err(DataError::TooLong { location: location(), limit: MAX_PIECE_BYTES, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::tokenizer_training::{MIN_VOCAB_SIZE, train_bpe};
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::of_bytes(&trained()));
    /// A tokenizer with the normalizer and pre-tokenizers of Qwen 2. Its pattern differs from the pattern of Llama 3
    /// only for digits.
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

    /// An added token that absorbs the white space beside it joins text that a split would divide.
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
            assert_eq!(split(&json), Split::BeforeWhitespace);
            token[key] = true.into();
            json["added_tokens"][3] = token;
            assert_eq!(split(&json), Split::Never, "{key}");
        }
    }

    #[test]
    fn splits_before_the_last_white_space_that_follows_something() {
        let last = |text| last_split(text, Split::BeforeWhitespace);
        assert_eq!(last("one two  three"), Some(7));
        assert_eq!(last("one two  "), Some(7));
        assert_eq!(last("é\u{3000}x"), Some(2));
        assert_eq!(last("  one"), None);
        assert_eq!(last("one"), None);
        assert_eq!(last(""), None);
        let last = |text| last_split(text, Split::BeforeSpaces);
        assert_eq!(last("one two.\n three"), Some(3));
        assert_eq!(last("one \ntwo"), Some(3));
        assert_eq!(last("one\r\ntwo"), None);
        assert_eq!(last_split("one two", Split::Never), None);
        let last = |text| last_split(text, Split::BeforeSpace);
        assert_eq!(last("one two  three"), Some(7));
        assert_eq!(last("one two\tthree\n four\u{3000}"), Some(3));
        assert_eq!(last("one two\u{2581} three"), Some(3));
    }

    /// A tokenizer with the pre-tokenizer of SentencePiece's BPE models.
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

    /// The tokenizers of SentencePiece that may be split, each in the form of an exported model.
    static SENTENCE_PIECE: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
        let spaces = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let mut changes = vec![
            // Gemma
            serde_json::json!({"/normalizer": spaces, "/pre_tokenizer":
                {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}}),
            serde_json::json!({"/normalizer": spaces, "/pre_tokenizer": null}),
            serde_json::json!({"/pre_tokenizer/split": true, "/model": {"type": "Unigram", "unk_id": 2, "vocab": [
                ["<s>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u{2581}", -2.0], ["\u{2581}the", -3.0], ["t", -4.0],
                ["h", -4.0], ["e", -4.0], ["\u{2581}c", -5.0], ["at", -5.0], ["1", -3.0], ["cat\u{2581}", -1.0]]}}),
        ];
        for scheme in ["first", "always", "never"] {
            for split in [false, true] {
                changes
                    .push(serde_json::json!({"/pre_tokenizer/prepend_scheme": scheme, "/pre_tokenizer/split": split}));
            }
        }
        changes
            .into_iter()
            .map(|changes| Tokenizer::of_bytes(of_sentence_piece(changes).to_string().as_bytes()))
            .collect()
    });

    #[test]
    fn texts_of_sentence_piece_are_split_where_no_token_crosses_a_space() {
        let split = |changes| Tokenizer::of_bytes(of_sentence_piece(changes).to_string().as_bytes()).split();
        assert_eq!(split(serde_json::json!({})), Split::BeforeSpace);
        let token = serde_json::json!({"id": 1000, "content": "a\u{2581}b", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false});
        let crossing = serde_json::json!([["t", "h"], ["\u{2581}", "\u{2581}"], ["s", "\u{2581}"]]);
        let vocab = serde_json::json!({"<s>": 0, "</s>": 1, "<unk>": 2, "\u{2581}": 3, "t": 4, "h": 5, "s": 6, "th": 7,
            "\u{2581}\u{2581}": 8, "s\u{2581}": 9});
        for changes in [
            serde_json::json!({"/model/vocab": vocab, "/model/merges": crossing}),
            serde_json::json!({"/model/ignore_merges": true}),
            serde_json::json!({"/added_tokens/0": token}),
            // every piece would get a space of its own
            serde_json::json!({"/normalizer": {"type": "Prepend", "prepend": "\u{2581}"}}),
            serde_json::json!({"/normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}, "/pre_tokenizer": null}),
        ] {
            assert_eq!(split(changes.clone()), Split::Never, "{changes}");
        }
        // words are separate whatever the tokens are
        let changes =
            serde_json::json!({"/model/vocab": vocab, "/model/merges": crossing, "/pre_tokenizer/split": true});
        assert_eq!(split(changes), Split::BeforeSpace);
    }

    proptest! {
        #[test]
        fn pieces_have_the_ids_of_the_whole(text in "([a-z']|the|cat's|12|é|[ \n\r\t\u{3000}\u{a0}]){0,40}") {
            let ids = |text: &str| TOKENIZER.encode(text).unwrap();
            prop_assert_eq!(TOKENIZER.split(), Split::BeforeWhitespace);
            for (end, _) in text.char_indices() {
                if let Some(at) = last_split(&text[..end], Split::BeforeWhitespace) {
                    prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
                }
            }
        }

        #[test]
        fn pieces_have_the_ids_of_the_whole_with_sentence_piece(
            text in "([a-z']|the| the|cat's|12|é|e\u{301}|<s>|[ \n\t\u{3000}\u{2581}]| |  ){0,40}"
        ) {
            for tokenizer in &*SENTENCE_PIECE {
                let ids = |text: &str| tokenizer.encode(text).unwrap();
                prop_assert_eq!(tokenizer.split(), Split::BeforeSpace);
                for (end, _) in text.char_indices() {
                    if let Some(at) = last_split(&text[..end], Split::BeforeSpace) {
                        prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
                    }
                }
            }
        }

        #[test]
        fn pieces_have_the_ids_of_the_whole_with_the_pattern_of_llama_3(
            text in "([a-z']|the|cat's|12|é|e\u{301}|[.,!] |[ \n\r\t\u{3000}\u{a0}.!]){0,40}"
        ) {
            let ids = |text: &str| LLAMA_3.encode(text).unwrap();
            prop_assert_eq!(LLAMA_3.split(), Split::BeforeSpaces);
            for (end, _) in text.char_indices() {
                if let Some(at) = last_split(&text[..end], Split::BeforeSpaces) {
                    prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
                }
            }
        }
    }
}
