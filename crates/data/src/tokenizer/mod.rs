//! Converts text to token ids and back, and finds the special tokens of documents.

mod definition;
mod special_tokens;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Value, json};

use crate::catch_panic::catch_panic;
use crate::conversations::ConversationEncoder;
use crate::corpus::SplitPoints;
use crate::error::DataError;
use crate::findings::{Findings, LossyEncoding};
use crate::named_tokens::{NamedTokens, PAD_KEY};
#[cfg(test)]
pub(crate) use definition::LLAMA_3_PATTERN;
pub use special_tokens::SpecialTokenIds;
use special_tokens::{Configs, EOS_TOKENS, Names};
pub(crate) use special_tokens::{SPECIAL_TOKENS, TOKENIZER_CONFIG_FILE, parse_config, read_config};

/// A loaded `tokenizer.json`.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    hash: String,
    vocab_size: usize,
    split: SplitPoints,
    special_tokens: SpecialTokenIds,
    named: NamedTokens,
    /// Whether the padding token is special only because a configuration names this token.
    padding_stays_text: bool,
    /// Whether special tokens in a text are encoded as tokens.
    parses: bool,
    lossy_encoding: LossyEncoding,
    /// The encoder of conversations, if the corpus has conversations.
    pub(crate) conversations: Option<Arc<ConversationEncoder>>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` and the configurations beside it. Text that looks like a special token, such as
    /// `[EOT]`, is encoded as text.
    ///
    /// # Errors
    /// Fails if the file can't be read, if it isn't a tokenizer, or if the tokenizer has random results.
    pub fn load(path: &Path) -> Result<Tokenizer, DataError> {
        Tokenizer::read(path, false, &NamedTokens::default()).map(|(tokenizer, _)| tokenizer)
    }

    /// Like [`load`](Self::load), but text that looks like a special token is encoded as that token.
    ///
    /// # Errors
    /// Fails like [`load`](Self::load).
    pub fn load_parsing(path: &Path) -> Result<Tokenizer, DataError> {
        Tokenizer::read(path, true, &NamedTokens::default()).map(|(tokenizer, _)| tokenizer)
    }

    /// Returns the tokenizer, and the bytes of its file. If `parse` is true, special tokens in a text are encoded as
    /// tokens. `named` contains the tokens that the job names.
    pub(crate) fn read(path: &Path, parse: bool, named: &NamedTokens) -> Result<(Tokenizer, Vec<u8>), DataError> {
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
        Ok((Tokenizer::from_bytes(path, &bytes, &Configs::beside(path)?, parse, named)?, bytes))
    }

    fn from_bytes(
        path: &Path,
        bytes: &[u8],
        configs: &Configs,
        parse: bool,
        named: &NamedTokens,
    ) -> Result<Tokenizer, DataError> {
        let bad = |problem: String| DataError::Tokenizer { path: path.into(), problem };
        let not_one = |error: String| bad(format!("this tokenizer.json can't be read: {error}"));
        let mut definition: Value = serde_json::from_slice(bytes).map_err(|error| not_one(error.to_string()))?;
        definition::check_deterministic(&definition).map_err(bad)?;
        let mut inner = parse_definition(bytes).map_err(not_one)?;
        let mut special_tokens = configs.special_tokens(&names(&inner, &definition), named).map_err(bad)?;
        let mut newly_special = Vec::new();
        let mut decides_texts = Vec::new();
        for (key, id) in special_tokens.by_name() {
            let Some(name) = inner.id_to_token(id) else { continue };
            let was_added = definition::added_tokens(&definition).iter().any(|token| token["content"] == name.as_str());
            if definition::mark_special(&mut definition, &name, id) {
                newly_special.push(key);
                // marking an ordinary word as special changes the tokens of texts only if special tokens are parsed
                decides_texts.extend((was_added || parse).then_some(key));
            }
        }
        let padding_stays_text = newly_special.contains(&PAD_KEY);
        special_tokens.pad_decides_texts = decides_texts.contains(&PAD_KEY);
        if !newly_special.is_empty() {
            let bytes = serde_json::to_vec(&definition).map_err(|error| not_one(error.to_string()))?;
            inner = parse_definition(&bytes).map_err(not_one)?;
        }
        inner.set_encode_special_tokens(!parse);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        if vocab_size == 0 {
            return Err(bad("its vocabulary is empty: take another tokenizer".into()));
        }
        let hash = blake3::hash(bytes).to_hex().to_string();
        let split = definition::split(&definition, parse);
        let lossy_encoding = lossy_encoding(&definition, &inner, parse);
        Ok(Tokenizer {
            inner,
            path: path.into(),
            hash,
            vocab_size,
            split,
            special_tokens,
            named: named.clone(),
            padding_stays_text,
            parses: parse,
            lossy_encoding,
            conversations: None,
        })
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Tokenizer {
        Tokenizer::from_bytes(Path::new("test"), bytes, &Configs::default(), false, &NamedTokens::default()).unwrap()
    }

    /// Returns the ids of `text`, without begin- or end-of-text tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).map_err(self.failed())
    }

    /// Like [`encode`](Self::encode), but also returns the range of bytes in the text for each id.
    pub(crate) fn encode_with_bytes(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>), DataError> {
        let encoding = self.inner.encode(text, false).map_err(self.failed())?;
        let bytes = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), bytes))
    }

    pub(crate) fn lossy_encoding(&self) -> &LossyEncoding {
        &self.lossy_encoding
    }

    /// Returns the ids and findings of each text, computed on all processors.
    pub(crate) fn encode_all(&self, texts: Vec<String>) -> Result<Vec<(Vec<u32>, Findings)>, DataError> {
        let mut all_findings = vec![Findings::default(); texts.len()];
        for (findings, text) in all_findings.iter_mut().zip(&texts) {
            findings.special_as_text(self.special_as_text(text));
        }
        let encodings = if self.lossy_encoding.may_drop_characters {
            let encodings = self.inner.encode_batch(texts.clone(), false).map_err(self.failed())?;
            for ((findings, text), encoding) in all_findings.iter_mut().zip(&texts).zip(&encodings) {
                findings.dropped(text, encoding.get_offsets());
            }
            encodings
        } else {
            self.inner.encode_batch_fast(texts, false).map_err(self.failed())?
        };
        let ids_of = |encoding: tokenizers::Encoding| encoding.get_ids().to_vec();
        let mut encoded: Vec<_> = encodings.into_iter().map(ids_of).zip(all_findings).collect();
        for (ids, findings) in &mut encoded {
            self.lossy_encoding.count_unknown(ids, findings);
        }
        Ok(encoded)
    }

    /// Returns the special tokens that `text` spells and that are encoded as text, in the order of the text.
    pub fn special_as_text<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.lossy_encoding.special_names.iter().flat_map(move |special| special.find_iter(text));
        found.map(move |found| &text[found.range()])
    }

    /// Returns the text of `ids`. Special tokens are left out, and bytes that aren't UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, true).map_err(self.failed())
    }

    /// Returns the text that each of `ids` adds to the text of the ids before it, including special tokens. A token
    /// that ends within a character adds nothing, and the next token adds the whole character.
    pub(crate) fn texts_of(&self, ids: impl Iterator<Item = u32>) -> Vec<String> {
        let mut stream = self.inner.decode_stream(false);
        let text = |id| match stream.step(id) {
            Ok(text) => text.unwrap_or_default(),
            // the stream fails if the decoder changes text that was already returned; in this case, the token's name is
            // used
            Err(_) => {
                stream = self.inner.decode_stream(false);
                self.inner.id_to_token(id).unwrap_or_default()
            }
        };
        ids.map(text).collect()
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's tokenizer. It encodes special tokens in a text as text, unless the tokenizer was loaded to
    /// parse them.
    pub(crate) fn library(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Returns the highest id plus one, which is the number of rows that the model's embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the BLAKE3 hash of the file, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the tokens that begin, end and pad documents. Training needs a token that ends documents.
    pub fn special_tokens(&self) -> &SpecialTokenIds {
        &self.special_tokens
    }

    /// Returns the tokens that the job names.
    pub(crate) fn named_tokens(&self) -> &NamedTokens {
        &self.named
    }

    /// Returns the token that pads rows: the padding token, or the end-of-text token if there is no padding token.
    pub(crate) fn padding(&self) -> Option<u32> {
        let special = &self.special_tokens;
        special.pad.or_else(|| special.eos.first().copied())
    }

    /// Whether text that spells the padding token stays text only because a configuration names this token.
    pub(crate) fn padding_stays_text(&self) -> bool {
        self.padding_stays_text
    }

    pub(crate) fn require_eos_token(&self) -> Result<u32, DataError> {
        let known = || EOS_TOKENS.map(str::to_owned).to_vec();
        let eos = self.special_tokens.eos.first().copied();
        eos.ok_or_else(|| DataError::NoEndOfText { path: self.path.clone(), known: known() })
    }

    /// Returns the begin-of-text token for a document whose first ids are `ids`. Returns `None` if the tokenizer has no
    /// such token, or if the text already begins with the token.
    pub fn bos_before(&self, ids: &[u32]) -> Option<u32> {
        self.special_tokens.bos.filter(|bos| !self.parses || ids.first() != Some(bos))
    }

    /// Whether the text of a document whose last token is `id` already ends with an end-of-text token.
    pub(crate) fn is_ended_by(&self, id: Option<&u32>) -> bool {
        self.parses && id.is_some_and(|id| self.special_tokens.eos.contains(id))
    }

    /// Returns the positions at which text may be split such that the pieces have the ids of the whole text.
    pub(crate) fn split(&self) -> SplitPoints {
        self.split
    }

    /// Returns the `tokenizer_config.json` with which `AutoTokenizer.from_pretrained` opens this tokenizer.
    pub(crate) fn config(&self) -> Value {
        let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false});
        for (key, id) in self.special_tokens.by_name() {
            if let Some(name) = self.inner.id_to_token(id) {
                config[key] = name.into();
            }
        }
        config
    }

    fn failed(&self) -> impl Fn(tokenizers::Error) -> DataError + '_ {
        |error| DataError::Tokenizer { path: self.path.clone(), problem: format!("it failed: {error}") }
    }
}

/// Returns the tokens of a tokenizer by name.
fn names<'a>(inner: &'a tokenizers::Tokenizer, definition: &Value) -> Names<'a> {
    let mut added = BTreeMap::new();
    for token in definition::added_tokens(definition) {
        if let Some(content) = token["content"].as_str() {
            added.insert(content.to_owned(), token["special"] == true);
        }
    }
    Names { id_of: Box::new(|name| inner.token_to_id(name)), added }
}

fn lossy_encoding(definition: &Value, inner: &tokenizers::Tokenizer, parse: bool) -> LossyEncoding {
    let special = definition::added_tokens(definition).iter().filter(|token| token["special"] == true);
    let contents: Vec<&str> = special.filter_map(|token| token["content"].as_str()).collect();
    let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
    LossyEncoding {
        special_names: matcher.ok().filter(|_| !parse),
        unknown_id: definition::unknown_token(definition).and_then(|name| inner.token_to_id(name)),
        may_drop_characters: definition::may_drop_characters(definition, &|name| inner.token_to_id(name).is_some()),
    }
}

/// Parses a definition with the library. The library panics on some definitions, for example if the merges lack the
/// prefix of continuing subwords.
fn parse_definition(bytes: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    match catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Some(parsed) => parsed.map_err(|error| error.to_string()),
        None => {
            Err("the library that reads it failed: its vocabulary, merges and prefixes do not fit each other".into())
        }
    }
}
