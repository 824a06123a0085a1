//! Text to token ids and back, and the names of the special tokens.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::corpus::Split;
use crate::error::DataError;

/// The special tokens of a tokenizer trained here, with ids 0, 1 and 2: begin of text, end of text, padding.
pub(crate) const SPECIAL_TOKENS: [&str; 3] = ["[BOT]", "[EOT]", "[PAD]"];

/// Names of the special tokens, ours and other tokenizers'; the first that a tokenizer has is used. `<|endoftext|>` only
/// ends documents.
const BOS_TOKENS: [&str; 6] = [SPECIAL_TOKENS[0], "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"];
const EOS_TOKENS: [&str; 6] = [SPECIAL_TOKENS[1], "</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"];
const PAD_TOKENS: [&str; 5] = [SPECIAL_TOKENS[2], "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|padding|>"];

/// Pre-tokens of Llama 3: white space is at their start, but for line ends behind punctuation.
pub(crate) const LLAMA_3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same of Qwen 2 and 3, with single digits.
const QWEN_2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A `tokenizer.json`, loaded.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    hash: String,
    vocab_size: usize,
    split: Split,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file can't be read, or isn't a tokenizer.
    pub fn load(path: &Path) -> Result<Tokenizer, DataError> {
        Tokenizer::read(path).map(|(tokenizer, _)| tokenizer)
    }

    /// The tokenizer, and the bytes of its file.
    pub(crate) fn read(path: &Path) -> Result<(Tokenizer, Vec<u8>), DataError> {
        let bad = |problem: &str| DataError::Tokenizer { path: path.into(), problem: problem.into() };
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                bad("there is no such file: check data.tokenizer.file.path, which starts at the volume's root")
            }
            ErrorKind::IsADirectory => {
                bad("this is a folder: name the tokenizer.json in it as data.tokenizer.file.path")
            }
            _ => DataError::io("read", path)(error),
        })?;
        Ok((Tokenizer::from_bytes(path, &bytes)?, bytes))
    }

    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Tokenizer, DataError> {
        let bad = |problem: String| DataError::Tokenizer { path: path.into(), problem };
        let not_one = |error: String| bad(format!("this is no tokenizer.json that can be read: {error}"));
        let definition: Value = serde_json::from_slice(bytes).map_err(|error| not_one(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| not_one(error.to_string()))?;
        // Text that looks like a special token, such as "[EOT]" in a document, is encoded as text.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        if vocab_size == 0 {
            return Err(bad("its vocabulary is empty: take another".into()));
        }
        let hash = blake3::hash(bytes).to_hex().to_string();
        let split = split(&definition);
        Ok(Tokenizer { inner, path: path.into(), hash, vocab_size, split })
    }

    /// The ids of `text`, without begin- or end-of-text tokens. Text that looks like a special token is encoded as text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).map_err(self.failed())
    }

    /// The ids of `text` as [`encode`](Self::encode) gives them, and the bytes of the text that each is of.
    pub(crate) fn encode_with_bytes(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>), DataError> {
        let encoding = self.inner.encode(text, false).map_err(self.failed())?;
        let bytes = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), bytes))
    }

    /// The ids of each text, computed on all processors.
    pub(crate) fn encode_all(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, DataError> {
        let encodings = self.inner.encode_batch_fast(texts, false).map_err(self.failed())?;
        Ok(encodings.into_iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// The text of `ids`; special tokens are left out, and bytes that aren't UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, true).map_err(self.failed())
    }

    /// One more than the highest id: the rows that the model's embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// BLAKE3 of the file, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The begin-of-text token, if there is one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.first_of(&BOS_TOKENS)
    }

    /// The end-of-text token, if there is one. Training needs it.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.first_of(&EOS_TOKENS)
    }

    /// The padding token, if there is one.
    pub fn pad_token_id(&self) -> Option<u32> {
        self.first_of(&PAD_TOKENS)
    }

    pub(crate) fn require_eos_token(&self) -> Result<u32, DataError> {
        let known = || EOS_TOKENS.map(str::to_owned).to_vec();
        self.eos_token_id().ok_or_else(|| DataError::NoEndOfText { path: self.path.clone(), known: known() })
    }

    /// Where text may be split so that the pieces have the ids of the whole.
    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// The `tokenizer_config.json` with which `AutoTokenizer.from_pretrained` opens this tokenizer.
    pub(crate) fn config(&self) -> Value {
        let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false});
        for (key, id) in self.special_tokens() {
            if let Some(name) = self.inner.id_to_token(id) {
                config[key] = name.into();
            }
        }
        config
    }

    /// The special tokens that the tokenizer has, by Hugging Face's names: `bos_token`, `eos_token`, `pad_token`.
    pub fn special_tokens(&self) -> Vec<(&'static str, u32)> {
        let names = [
            ("bos_token", self.bos_token_id()),
            ("eos_token", self.eos_token_id()),
            ("pad_token", self.pad_token_id()),
        ];
        names.into_iter().filter_map(|(name, id)| Some((name, id?))).collect()
    }

    fn first_of(&self, names: &[&str]) -> Option<u32> {
        names.iter().find_map(|name| self.inner.token_to_id(name))
    }

    fn failed(&self) -> impl Fn(tokenizers::Error) -> DataError + '_ {
        |error| DataError::Tokenizer { path: self.path.clone(), problem: format!("it failed: {error}") }
    }
}

/// Where text may be split, by the tokenizer's definition. Those that aren't known get whole documents, such as those with a
/// prefix or with white space within an added token. NFC joins nothing to the white space that follows it.
fn split(definition: &Value) -> Split {
    let normalizes = !definition["normalizer"].is_null() && definition["normalizer"]["type"] != "NFC";
    // special tokens are encoded as text
    let is_plain = |token: &Value| token["special"] == true || !token["content"].as_str().is_some_and(has_white_space);
    let added_tokens = definition["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let pre_tokenizer = &definition["pre_tokenizer"];
    if normalizes || !added_tokens.iter().all(is_plain) {
        return Split::Never;
    }
    if is_byte_level(pre_tokenizer) && pre_tokenizer["use_regex"] != false {
        return Split::BeforeWhitespace;
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
            Split::BeforeSpaces
        }
        _ => Split::Never,
    }
}

fn is_byte_level(pre_tokenizer: &Value) -> bool {
    pre_tokenizer["type"] == "ByteLevel" && pre_tokenizer["add_prefix_space"] == false
}

fn has_white_space(text: &str) -> bool {
    text.contains(char::is_whitespace)
}
