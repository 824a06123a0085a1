//! The token cache: `<cache>/<key>/` holds a corpus as token ids, made once by stage 0 and shared by jobs.
//! The key is a hash of the corpus's contents and the tokenizer. Work is published in parts, so that a killed run goes on
//! after the last one; `meta.json` comes last, and a folder with it is complete and never changes but for that file.

mod build;
mod meta;
mod parts;
mod publish;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::corpus::{Corpus, Kind};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::settings::{Progress, Settings, TokenizerSource};
use crate::tokenizer::Tokenizer;
use crate::train;
use build::{Build, Origin};
use meta::Meta;

pub(crate) const IDS: &str = "ids.bin";
pub(crate) const DOCUMENTS: &str = "documents.bin";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Goes into every key: raise it when the same corpus and tokenizer would be stored in another way.
const FORMAT: u32 = 1;

/// Bytes of the corpus in a part: a few seconds of work to lose.
const PART: u64 = 16 << 20;

/// What `prepare` made: enough for any process that sees the volume to open it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The cache's folder, relative to [`Settings::cache`].
    pub folder: PathBuf,
    /// BLAKE3 over the files' contents in order, in hexadecimal: what a model was trained on.
    pub corpus_hash: String,
    /// BLAKE3 of `tokenizer.json`, in hexadecimal.
    pub tokenizer_hash: String,
    /// Tokens of the corpus, those that begin and end documents included.
    pub tokens: u64,
    /// Documents with at least one token of text.
    pub documents: u64,
    /// Documents left out because they are empty.
    pub empty_documents: u64,
    /// The tokenizer's real size: a small corpus doesn't fill the one asked for.
    pub vocab_size: usize,
    /// Bytes an id takes in the cache: 2 up to a vocabulary of 65,536, else 4.
    pub id_bytes: usize,
    /// What fills up rows: the tokenizer's padding, or its end of text where it has none.
    pub padding: u32,
}

/// Finds the corpus, makes the tokenizer and tokenises, or finds all of it already done. For one process at a time, though
/// several do no harm; killed at any moment, the next call goes on where it was. Nothing half-written is left if the data is
/// wrong. `progress` is called once for every piece of text, often thousands of times a second.
///
/// # Errors
/// Everything in [`DataError`].
pub fn prepare(settings: &Settings, progress: &mut dyn FnMut(Progress)) -> Result<Prepared, DataError> {
    prepare_in_parts(settings, PART, progress)
}

fn prepare_in_parts(settings: &Settings, part: u64, progress: &mut dyn FnMut(Progress)) -> Result<Prepared, DataError> {
    let corpus = Corpus::find(settings)?;
    if corpus.size() == 0 {
        return Err(DataError::Empty { files: corpus.sources.len() });
    }
    let origin = origin(settings, &corpus)?;
    let sources = meta::hash_sources(&corpus, &settings.cache, progress)?;
    let corpus_hash = meta::corpus_hash(&corpus, &sources);
    let folder = PathBuf::from(key(&corpus_hash, &origin));
    let path = settings.cache.join(&folder);

    let prepared = match Meta::load(&path) {
        Some(meta) => {
            meta.refresh(&path, sources)?;
            meta.prepared
        }
        None => {
            let build = Build { corpus: &corpus, origin: &origin, folder: &path, part };
            let built = build.run(progress).and_then(|built| {
                let prepared = Prepared {
                    folder,
                    corpus_hash,
                    tokenizer_hash: built.tokenizer.hash().to_owned(),
                    tokens: built.tokens,
                    documents: built.documents,
                    empty_documents: built.empty,
                    vocab_size: built.tokenizer.vocab_size(),
                    id_bytes: parts::id_bytes(&built.tokenizer),
                    padding: built.tokenizer.padding().unwrap_or(built.end_of_text),
                };
                Meta { prepared: prepared.clone(), sources }.publish(&path)?;
                build.clean_up();
                Ok(prepared)
            });
            match (built, Meta::load(&path)) {
                (Ok(prepared), _) => prepared,
                // Another process was faster and has cleared away what this one was still using.
                (Err(_), Some(meta)) => {
                    build.clean_up();
                    meta.prepared
                }
                (Err(error), None) => {
                    if !error.is_storage() {
                        fs::remove_dir_all(&path).ok();
                    }
                    return Err(error);
                }
            }
        }
    };
    Dataset::open(settings, &prepared)?; // a corpus that is too short is told now, not once the stages have started
    Ok(prepared)
}

/// Where the tokenizer comes from, its file read and both found fit for the corpus.
fn origin(settings: &Settings, corpus: &Corpus) -> Result<Origin, DataError> {
    match &settings.tokenizer {
        TokenizerSource::File { path } => {
            let path = settings.root.join(path);
            let (tokenizer, bytes) = Tokenizer::read(&path)?;
            tokenizer.require_end_of_text()?;
            Ok(Origin::File { path, bytes, hash: tokenizer.hash().to_owned() })
        }
        &TokenizerSource::Train { vocab_size } => {
            if vocab_size < train::LEAST_VOCABULARY {
                return Err(DataError::VocabularyTooSmall { found: vocab_size, least: train::LEAST_VOCABULARY });
            }
            match corpus.sources.iter().find(|source| matches!(source.kind, Kind::Ids16 | Kind::Ids32)) {
                Some(source) => Err(DataError::IdsWithoutTokenizer { path: source.path.clone() }),
                None => Ok(Origin::Train { vocab_size }),
            }
        }
    }
}

/// The cache's folder: 32 hexadecimal digits.
fn key(corpus_hash: &str, origin: &Origin) -> String {
    let tokenizer = match origin {
        Origin::Train { vocab_size } => format!("train {} {vocab_size}", train::RECIPE),
        Origin::File { hash, .. } => format!("file {hash}"),
    };
    let hash = blake3::hash(format!("stagecoach tokens {FORMAT}\n{corpus_hash}\n{tokenizer}\n").as_bytes());
    hash.to_hex()[..32].to_owned()
}
