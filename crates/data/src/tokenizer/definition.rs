//! Reads and changes a `tokenizer.json` as JSON. Marks special tokens, and finds the positions at which texts may be
//! split.

use serde_json::{Value, json};

use crate::corpus::{METASPACE, SplitPoints};

/// The pattern of the pre-tokens of Llama 3. White space is at the start of a pre-token, except for line ends after
/// punctuation.
pub(crate) const LLAMA_3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of the pre-tokens of Qwen 2 and 3. It differs from the pattern of Llama 3 in that digits are single.
const QWEN_2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Returns the tokens of `added_tokens`.
pub(super) fn added_tokens(definition: &Value) -> &[Value] {
    definition["added_tokens"].as_array().map_or(&[][..], Vec::as_slice)
}

/// Returns the added tokens that are found in a text. If `parse` is false, text that spells a special token stays text.
fn matched_tokens(definition: &Value, parse: bool) -> impl Iterator<Item = &Value> {
    added_tokens(definition).iter().filter(move |token| parse || token["special"] != true)
}

/// Fails if the tokenizer has random results. BPE with dropout is the only random part of the format.
pub(super) fn check_deterministic(definition: &Value) -> Result<(), String> {
    match definition["model"]["dropout"].as_f64() {
        Some(dropout) if dropout > 0.0 => {
            Err(format!("its model.dropout is {dropout}, so that a text has other tokens in each run: set it to null"))
        }
        _ => Ok(()),
    }
}

/// Marks the token `name` as special, as transformers does with a token that a configuration names. Text that spells
/// the token then stays text, unless special tokens are parsed. Returns false if the token was special before.
pub(super) fn mark_special(definition: &mut Value, name: &str, id: u32) -> bool {
    if !definition["added_tokens"].is_array() {
        definition["added_tokens"] = json!([]);
    }
    let Some(tokens) = definition["added_tokens"].as_array_mut() else { return false };
    match tokens.iter_mut().find(|token| token["content"] == name) {
        Some(token) if token["special"] == true => return false,
        Some(token) => token["special"] = true.into(),
        None => tokens.push(special_token(name, id)),
    }
    true
}

fn special_token(name: &str, id: u32) -> Value {
    json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
}

/// Returns the token that stands for characters outside of the vocabulary.
pub(super) fn unknown_token(definition: &Value) -> Option<&str> {
    let model = &definition["model"];
    let unigram_unknown = || model["vocab"][usize::try_from(model["unk_id"].as_u64()?).ok()?][0].as_str();
    model["unk_token"].as_str().or_else(unigram_unknown)
}

/// Whether the encoding may drop characters outside of the vocabulary. A BPE model drops such characters if it has
/// neither an unknown token nor tokens for all bytes.
pub(super) fn may_drop_characters(definition: &Value, has_token: &dyn Fn(&str) -> bool) -> bool {
    let model = &definition["model"];
    let is_bpe = model["type"] == "BPE" || model["merges"].is_array();
    let has_bytes = || {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        has_byte_level(&definition["pre_tokenizer"]) && alphabet.iter().all(|byte| has_token(&byte.to_string()))
    };
    is_bpe && model["unk_token"].is_null() && model["byte_fallback"] != true && !has_bytes()
}

fn has_byte_level(pre_tokenizer: &Value) -> bool {
    let parts = pre_tokenizer["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
    pre_tokenizer["type"] == "ByteLevel" || parts.iter().any(has_byte_level)
}

/// Returns the positions at which a text may be split. A tokenizer whose definition is not known to allow splits
/// receives whole documents, for example a tokenizer with a prefix or with an added token that absorbs white space. The
/// normalizer NFC is safe, because NFC never combines a character with white space that follows. If `parse` is true,
/// special tokens in a text are encoded as tokens.
pub(super) fn split(definition: &Value, parse: bool) -> SplitPoints {
    if splits_before_space(definition, parse) {
        return SplitPoints::BeforeSpace;
    }
    let normalizes = !definition["normalizer"].is_null() && definition["normalizer"]["type"] != "NFC";
    let pre_tokenizer = &definition["pre_tokenizer"];
    if normalizes || matched_tokens(definition, parse).any(includes_white_space) {
        return SplitPoints::Never;
    }
    if is_byte_level(pre_tokenizer) && pre_tokenizer["use_regex"] != false {
        return SplitPoints::BeforeWhitespace;
    }
    match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([first, last])
            if pre_tokenizer["type"] == "Sequence"
                && first["type"] == "Split"
                && first["behavior"] == "Isolated"
                && first["invert"] != true
                && [LLAMA_3_PATTERN, QWEN_2_PATTERN].iter().any(|known| first["pattern"]["Regex"] == *known)
                && is_byte_level(last)
                && last["use_regex"] == false =>
        {
            SplitPoints::BeforeSpaces
        }
        _ => SplitPoints::Never,
    }
}

/// Whether a SentencePiece tokenizer returns the same ids if a text is split before a space. The tokenizer must add no
/// space before a text that begins with a space, and the ids on both sides of a space must be independent. If words are
/// separate pre-tokens, the ids are independent in any model. If the whole text is one pre-token, the ids are
/// independent in a BPE without a token that contains a space after another character. A Unigram model gives no such
/// guarantee, because it compares sums of rounded numbers over the whole text.
fn splits_before_space(definition: &Value, parse: bool) -> bool {
    let (normalizer, pre_tokenizer) = (&definition["normalizer"], &definition["pre_tokenizer"]);
    let metaspace = METASPACE.to_string();
    let replaces_spaces = normalizer["type"] == "Replace"
        && normalizer["pattern"]["String"] == " "
        && normalizer["content"] == *metaspace;
    let is_metaspace = pre_tokenizer["type"] == "Metaspace" && pre_tokenizer["replacement"] == *metaspace;
    // the normalizer has replaced all spaces, so a pattern of spaces matches nothing
    let finds_nothing = pre_tokenizer.is_null()
        || pre_tokenizer["type"] == "Split"
            && pre_tokenizer["pattern"]["String"] == " "
            && pre_tokenizer["invert"] != true;
    let keeps_words = normalizer.is_null() || normalizer["type"] == "NFC" || replaces_spaces;
    let has_spaces_only = is_metaspace && keeps_words || replaces_spaces && finds_nothing;
    let separates_words = is_metaspace && pre_tokenizer["split"] != false;
    let crosses = |token: &Value| takes_white_space(token) || token["content"].as_str().is_none_or(crosses_a_space);
    has_spaces_only
        && !matched_tokens(definition, parse).any(crosses)
        && (separates_words || merges_within_words(&definition["model"], &metaspace))
}

/// Whether no merge of a BPE joins a space to a character before it.
fn merges_within_words(model: &Value, metaspace: &str) -> bool {
    let is_empty = |text: &Value| text.is_null() || *text == "";
    // a merge is `["a", "b"]`, or `"a b"` in older files
    let joined = |merge: &Value| match (merge.as_str(), merge[0].as_str(), merge[1].as_str()) {
        (Some(pair), ..) => Some(pair.replacen(' ', "", 1)),
        (None, Some(first), Some(second)) => Some([first, second].concat()),
        _ => None,
    };
    let keeps_to_words = |merge| joined(merge).is_some_and(|token| !crosses_a_space(&token));
    model["ignore_merges"] != true
        && is_empty(&model["continuing_subword_prefix"])
        && is_empty(&model["end_of_word_suffix"])
        // if the space had no token, unknown characters on both sides of it could become one token
        && !model["vocab"][metaspace].is_null()
        && model["merges"].as_array().is_some_and(|merges| merges.iter().all(keeps_to_words))
}

/// Whether a space follows a character that is not a space.
fn crosses_a_space(token: &str) -> bool {
    let is_space = |character: char| character == ' ' || character == METASPACE;
    token.trim_start_matches(is_space).contains(is_space)
}

fn is_byte_level(pre_tokenizer: &Value) -> bool {
    pre_tokenizer["type"] == "ByteLevel" && pre_tokenizer["add_prefix_space"] == false
}

/// Whether a match of an added token includes white space, in the token itself or beside it.
fn includes_white_space(token: &Value) -> bool {
    let has_white_space = token["content"].as_str().is_some_and(|content| content.contains(char::is_whitespace));
    has_white_space || takes_white_space(token)
}

/// Whether a match of an added token absorbs the white space beside it.
fn takes_white_space(token: &Value) -> bool {
    token["lstrip"] == true || token["rstrip"] == true
}
