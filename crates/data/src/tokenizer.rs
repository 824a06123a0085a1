//! Text to token ids and back, and the names of the special tokens.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::DataError;

/// The special tokens of a tokenizer trained here, with ids 0, 1 and 2: begin of text, end of text, padding.
pub(crate) const SPECIAL: [&str; 3] = ["[BOT]", "[EOT]", "[PAD]"];

/// What others call them; the first that a tokenizer has is taken. `<|endoftext|>` alone ends documents but begins none.
const BEGIN: [&str; 6] = [SPECIAL[0], "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"];
const END: [&str; 6] = [SPECIAL[1], "</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"];
const PADDING: [&str; 5] = [SPECIAL[2], "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|padding|>"];

/// A `tokenizer.json`, loaded.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    hash: String,
    vocab_size: usize,
    cuttable: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file can't be read, or is no tokenizer.
    pub fn load(path: &Path) -> Result<Tokenizer, DataError> {
        Tokenizer::read(path).map(|(tokenizer, _)| tokenizer)
    }

    /// The tokenizer and the bytes it was made from.
    pub(crate) fn read(path: &Path) -> Result<(Tokenizer, Vec<u8>), DataError> {
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => DataError::Tokenizer {
                path: path.into(),
                problem: "there is no such file: check data.tokenizer.file.path, which starts at the volume's root"
                    .into(),
            },
            _ => DataError::io("read", path)(error),
        })?;
        Ok((Tokenizer::from_bytes(path, &bytes)?, bytes))
    }

    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Tokenizer, DataError> {
        let bad = |problem: String| DataError::Tokenizer { path: path.into(), problem };
        let not_one = |error: String| bad(format!("this is no tokenizer.json that can be read: {error}"));
        let definition: Value = serde_json::from_slice(bytes).map_err(|error| not_one(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| not_one(error.to_string()))?;
        // A document that spells out "[EOT]" must not end there.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        if vocab_size == 0 {
            return Err(bad("its vocabulary is empty: take another".into()));
        }
        let hash = blake3::hash(bytes).to_hex().to_string();
        Ok(Tokenizer { inner, path: path.into(), hash, vocab_size, cuttable: cuttable(&definition) })
    }

    /// The ids of `text`, without any that mark its begin or end. What looks like a special token is taken as text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).map_err(self.failed())
    }

    /// The ids of each text, computed on all processors.
    pub(crate) fn encode_all(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, DataError> {
        let encodings = self.inner.encode_batch_fast(texts, false).map_err(self.failed())?;
        Ok(encodings.into_iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// The text of `ids`; special tokens are left out, and bytes that are no UTF-8 become U+FFFD.
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

    /// The token that begins a document, if there is one.
    pub fn begin_of_text(&self) -> Option<u32> {
        self.first_of(&BEGIN)
    }

    /// The token that ends a document, if there is one. Training needs it.
    pub fn end_of_text(&self) -> Option<u32> {
        self.first_of(&END)
    }

    /// The token that fills up rows, if there is one.
    pub fn padding(&self) -> Option<u32> {
        self.first_of(&PADDING)
    }

    pub(crate) fn require_end_of_text(&self) -> Result<u32, DataError> {
        let known = || END.map(str::to_owned).to_vec();
        self.end_of_text().ok_or_else(|| DataError::NoEndOfText { path: self.path.clone(), known: known() })
    }

    /// Whether text may be cut before white space that follows something else, piece by piece giving the same ids. A
    /// tokenizer that sees the whole text at once, or puts something before it, gets whole documents.
    pub(crate) fn cuttable(&self) -> bool {
        self.cuttable
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

    /// The special tokens that are there, by Hugging Face's names: `bos_token`, `eos_token`, `pad_token`.
    pub fn special_tokens(&self) -> Vec<(&'static str, u32)> {
        let names =
            [("bos_token", self.begin_of_text()), ("eos_token", self.end_of_text()), ("pad_token", self.padding())];
        names.into_iter().filter_map(|(name, id)| Some((name, id?))).collect()
    }

    fn first_of(&self, names: &[&str]) -> Option<u32> {
        names.iter().find_map(|name| self.inner.token_to_id(name))
    }

    fn failed(&self) -> impl Fn(tokenizers::Error) -> DataError + '_ {
        |error| DataError::Tokenizer { path: self.path.clone(), problem: format!("it failed: {error}") }
    }
}

/// True for the GPT-2 kind: its words never span the end of one word and the white space after it.
fn cuttable(definition: &Value) -> bool {
    let words = &definition["pre_tokenizer"];
    definition["normalizer"].is_null()
        && words["type"] == "ByteLevel"
        && words["add_prefix_space"] == false
        && words["use_regex"] != false
}
