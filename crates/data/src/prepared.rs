//! A finished token cache: its files, and the data that every process needs to open it.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::chat_template::with_conversations;
use crate::config::{DataConfig, TokenizerSource};
use crate::error::DataError;
use crate::findings::Findings;
use crate::mapped::TokenForm;
use crate::template_parts::TemplateParts;
use crate::tokenizer::{SpecialTokenIds, Tokenizer};

pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";

/// A tokenised corpus. Any process that can read the volume can open the corpus with this data. The file `meta.json`
/// stores this data, so the names of the fields are part of the cache's format.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PreparedCorpus {
    /// The cache's folder, relative to [`DataConfig::cache_root`](crate::DataConfig::cache_root).
    pub folder: PathBuf,
    /// The BLAKE3 hash of the files' formats and contents in order, in hexadecimal. It identifies the data that a model
    /// was trained on.
    pub corpus_hash: String,
    /// The BLAKE3 hash of `tokenizer.json`, in hexadecimal.
    pub tokenizer_hash: String,
    /// The number of tokens of the corpus, including the tokens that begin and end documents.
    pub tokens: u64,
    /// The number of documents with at least one token of text.
    pub documents: u64,
    /// The parts of all sources, followed by the parts of all sets of held-out files. The list is empty for a corpus
    /// with one source and no held-out files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_source: Vec<PreparedSource>,
    /// The number of documents that are left out because they are empty.
    pub empty_documents: u64,
    /// The actual size of the tokenizer's vocabulary. A small corpus does not fill the requested size.
    pub vocab_size: usize,
    /// The number of bytes per id in the cache: 2 up to a vocabulary of 65,536, otherwise 4.
    pub id_bytes: usize,
    /// The id that pads rows: the tokenizer's padding token, or its end-of-text token if it has no padding token.
    pub padding: u32,
    /// The tokens that begin, end and pad documents.
    #[serde(default)]
    pub special_tokens: SpecialTokenIds,
    /// The hash of the chat template and its variables; `None` for a corpus of texts. A corpus with conversations has a
    /// bitmap of the tokens that are trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The inputs of the hash `chat_template`; `None` in caches of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_parts: Option<TemplateParts>,
    /// The parts of texts that their tokens do not represent.
    #[serde(default)]
    pub findings: Findings,
    /// Sentences for the user about the corpus: files without text, and findings. Each call of
    /// [`prepare`](crate::prepare) makes the sentences again.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The part of a tokenised corpus that comes from one source, or from one set of held-out files.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PreparedSource {
    /// The number of documents with at least one token of text.
    pub documents: u64,
    /// The number of tokens, including the tokens that begin and end documents.
    pub tokens: u64,
}

impl PreparedCorpus {
    /// Returns the range of documents of each source, and of each set of held-out files.
    pub(crate) fn documents_of_parts(&self) -> Vec<Range<u64>> {
        let only_source = PreparedSource { documents: self.documents, tokens: self.tokens };
        let sources = if self.by_source.is_empty() { &[only_source][..] } else { &self.by_source };
        let mut end = 0;
        let ranges = sources.iter().map(|source| {
            let start = end;
            end += source.documents;
            start..end
        });
        ranges.collect()
    }

    /// Returns the form in which the tokens are stored.
    pub(crate) fn form(&self) -> TokenForm {
        TokenForm { id_bytes: self.id_bytes, has_mask: self.chat_template.is_some() }
    }

    /// Returns the path of `tokenizer.json` in the cache.
    pub fn tokenizer_file(&self, config: &DataConfig) -> PathBuf {
        config.cache_root.join(&self.folder).join(TOKENIZER_FILE)
    }

    /// Reads the tokenizer of the corpus.
    ///
    /// # Errors
    /// Fails if the tokenizer's file can't be read. Also fails if the corpus was tokenised with another tokenizer or
    /// chat template.
    pub(crate) fn tokenizer(&self, config: &DataConfig) -> Result<Tokenizer, DataError> {
        let path = match &config.tokenizer {
            TokenizerSource::File { path } => config.volume_root.join(path),
            TokenizerSource::Train { .. } => self.tokenizer_file(config),
        };
        let (tokenizer, _) = Tokenizer::read(&path, config.parse_special_tokens, &config.named_tokens)?;
        if tokenizer.hash() != self.tokenizer_hash {
            let problem = "it differs from the tokenizer with which the corpus was tokenised: restore that file".into();
            return Err(DataError::Tokenizer { path, problem });
        }
        let tokenizer = with_conversations(tokenizer, config)?;
        let encoder = tokenizer.conversations.as_ref();
        if encoder.map(|encoder| &encoder.template_hash) != self.chat_template.as_ref() {
            let now = encoder.map(|encoder| &encoder.template_parts);
            let problem = TemplateParts::difference(now, self.template_parts.as_ref());
            return Err(DataError::Tokenizer { path, problem });
        }
        Ok(tokenizer)
    }
}
