//! The token cache: `<cache>/<key>/` holds a corpus as token ids. Stage 0 fills it once, and jobs share it. The key is
//! a hash of the corpus's contents and the tokenizer. Parts are written one by one, so that an interrupted run resumes
//! after the last one. `meta.json` is written last: a folder with it is complete, and only `meta.json` itself changes
//! afterwards.

mod build;
mod meta;
mod parts;
mod stream;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use crate::chat_template::with_conversations;
use crate::config::{DataConfig, DocumentFormat, HeldOut, OnBadRecord, PrepareProgress, TokenizerSource};
use crate::corpus::Corpus;
use crate::dataset::Dataset;
use crate::document_hashes::DocumentHashes;
use crate::document_tokens::form_of;
use crate::error::DataError;
use crate::prepared::PreparedCorpus;
use crate::tokenizer::{SpecialTokenIds, Tokenizer};
use crate::tokenizer_training::{MIN_VOCAB_SIZE, TRAINING_VERSION};
use build::{CacheBuilder, ResolvedTokenizer};
use meta::Meta;

/// Part of every cache key. Increment it when the same corpus and tokenizer are stored in another way.
const CACHE_FORMAT_VERSION: u32 = 1;

/// Bytes of the corpus per part. The number bounds the work lost in a crash to a few seconds.
const PART_BYTES: u64 = 16 << 20;

/// Finds the corpus, trains or reads the tokenizer and tokenises the corpus, or the held-out part of a streamed one,
/// except for the work that the cache already holds. Concurrent calls are safe, but they repeat each other's work.
/// After a crash, the next call resumes. Invalid data leaves nothing incomplete behind. `progress` is called once for
/// every piece of text, often thousands of times a second.
///
/// # Errors
/// Any [`DataError`].
pub fn prepare(config: &DataConfig, progress: &mut dyn FnMut(PrepareProgress)) -> Result<PreparedCorpus, DataError> {
    prepare_in_parts(config, PART_BYTES, progress)
}

/// Checks the sources of [`prepare`] without reading any text: the corpus's files, and the tokenizer's file if it has
/// one. Returns the size of the tokenizer's vocabulary, or `None` if the tokenizer is yet to be trained.
///
/// # Errors
/// Like [`prepare`].
pub fn check_sources(config: &DataConfig) -> Result<Option<usize>, DataError> {
    Ok(match find_sources(config)?.1 {
        ResolvedTokenizer::File { tokenizer, .. } => Some(tokenizer.vocab_size()),
        ResolvedTokenizer::Train { .. } => None,
    })
}

fn find_sources(config: &DataConfig) -> Result<(Corpus, ResolvedTokenizer), DataError> {
    let corpus = Corpus::find(config)?;
    if corpus.size() == 0 {
        return Err(DataError::Empty { files: corpus.files.len(), notes: Vec::new() });
    }
    let tokenizer = resolve_tokenizer(config, &corpus)?;
    Ok((corpus, tokenizer))
}

/// The corpus and its tokenizer. A tokenizer that the corpus trains is trained, and the corpus prepared, if it is not
/// yet.
///
/// # Errors
/// Like [`prepare`].
pub(crate) fn find_tokens(config: &DataConfig) -> Result<(Corpus, Tokenizer), DataError> {
    Ok(match find_sources(config)? {
        (corpus, ResolvedTokenizer::File { tokenizer, .. }) => (corpus, *tokenizer),
        (corpus, ResolvedTokenizer::Train { .. }) => {
            let tokenizer = prepare(config, &mut |_| {})?.tokenizer(config)?;
            (corpus, tokenizer)
        }
    })
}

/// Checks that the files of `corpus` have the contents that were prepared.
///
/// # Errors
/// Fails if the contents differ, or if a changed file can't be read.
pub(crate) fn check_contents(config: &DataConfig, prepared: &PreparedCorpus, corpus: &Corpus) -> Result<(), DataError> {
    let hashes = meta::hash_files(corpus, &config.cache_root, &mut |_| {})?;
    match meta::corpus_hash(corpus, &hashes) == prepared.corpus_hash {
        true => Ok(()),
        false => {
            let problem = "the corpus has other files, or files with other contents, than when it was prepared for this \
                           start: wait until they are complete and run again";
            Err(DataError::Invalid { problem: problem.into() })
        }
    }
}

fn prepare_in_parts(
    config: &DataConfig,
    part_bytes: u64,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<PreparedCorpus, DataError> {
    let (corpus, tokenizer) = find_sources(config)?;
    let hashes = meta::hash_files(&corpus, &config.cache_root, progress)?;
    let corpus_hash = meta::corpus_hash(&corpus, &hashes);
    let key = cache_key(&corpus_hash, &corpus, &tokenizer, config);
    let folder = PathBuf::from(match &config.streaming {
        Some(streaming) => stream::key(&key, config, streaming),
        None => key,
    });
    let path = config.cache_root.join(&folder);

    let prepared = match Meta::load(&path) {
        Some(meta) => {
            meta.refresh(&path, hashes)?;
            meta.prepared
        }
        None => {
            let builder = CacheBuilder { corpus: &corpus, tokenizer: &tokenizer, folder: &path, part_bytes };
            let contents = match &config.streaming {
                Some(streaming) => stream::build((config, streaming), (&corpus, &tokenizer), &folder, progress),
                None => builder.run(progress),
            };
            let built = contents.and_then(|contents| {
                let prepared = PreparedCorpus {
                    folder,
                    corpus_hash,
                    tokenizer_hash: contents.tokenizer.hash().to_owned(),
                    by_source: if contents.sources.len() > 1 { contents.sources } else { Vec::new() },
                    tokens: contents.tokens,
                    documents: contents.documents,
                    empty_documents: contents.empty_documents,
                    vocab_size: contents.tokenizer.vocab_size(),
                    id_bytes: form_of(&contents.tokenizer).id_bytes,
                    padding: contents.tokenizer.padding().unwrap_or(contents.eos_token_id),
                    special_tokens: contents.tokenizer.special_tokens().clone(),
                    chat_template: contents.tokenizer.conversations.as_ref().map(|it| it.template_hash.clone()),
                    template_parts: contents.tokenizer.conversations.as_ref().map(|it| it.template_parts.clone()),
                    findings: contents.findings,
                    notes: Vec::new(),
                };
                Meta { prepared: prepared.clone(), sources: hashes }.write(&path)?;
                builder.clean_up();
                Ok(prepared)
            });
            match (built, Meta::load(&path)) {
                (Ok(prepared), _) => prepared,
                // A concurrent process has finished and removed the parts that this process was using.
                (Err(_), Some(meta)) => {
                    builder.clean_up();
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
    // another job with another padding token may have filled the cache, or an older version that records no tokens
    let own = match &tokenizer {
        ResolvedTokenizer::File { tokenizer, .. } => Tokenizer::clone(tokenizer),
        ResolvedTokenizer::Train { .. } => prepared.tokenizer(config)?,
    };
    let prepared = PreparedCorpus {
        padding: own.padding().unwrap_or(prepared.padding),
        special_tokens: SpecialTokenIds {
            all_end_documents: own.special_tokens().eos.len() > 1 && ends_documents_at_tokens(config, &corpus),
            ..own.special_tokens().clone()
        },
        ..prepared
    };
    if let (HeldOut::Documents(_), None) = (config.held_out, &config.streaming) {
        DocumentHashes::write(&path, &prepared, progress)?;
    }
    Dataset::open(config, &prepared)?; // reports a corpus that is too short before the stages start
    // written last: a job that can't begin may find other files when a user starts it again
    corpus.remote_files.write()?;
    let notes = [corpus.notes(), prepared.findings.notes(&corpus.file_names())].concat();
    Ok(PreparedCorpus { notes, ..prepared })
}

/// The tokenizer to use. A tokenizer file is read, and the source is checked against the corpus.
fn resolve_tokenizer(config: &DataConfig, corpus: &Corpus) -> Result<ResolvedTokenizer, DataError> {
    match &config.tokenizer {
        TokenizerSource::File { path } => {
            let (tokenizer, bytes) =
                Tokenizer::read(&config.volume_root.join(path), config.parse_special_tokens, &config.named_tokens)?;
            tokenizer.require_eos_token()?;
            let tokenizer = Box::new(with_conversations(tokenizer, config)?);
            Ok(ResolvedTokenizer::File { tokenizer, bytes })
        }
        &TokenizerSource::Train { vocab_size } => {
            if config.formats().any(|format| format != DocumentFormat::Text) {
                let problem = "data.tokenizer is trained on the corpus, and a conversation needs the special tokens and \
                               the chat template of a model: give its tokenizer with type File";
                return Err(DataError::Invalid { problem: problem.into() });
            }
            if vocab_size < MIN_VOCAB_SIZE {
                return Err(DataError::VocabularyTooSmall { found: vocab_size, least: MIN_VOCAB_SIZE });
            }
            match corpus.files.iter().find(|file| !file.format.is_text()) {
                Some(file) => Err(DataError::IdsWithoutTokenizer { path: file.path.clone() }),
                None => Ok(ResolvedTokenizer::Train { vocab_size, parse: config.parse_special_tokens }),
            }
        }
    }
}

/// Name of the cache's folder: 32 hexadecimal digits, a hash of everything that determines the ids. The hash leaves out
/// settings with which older versions give the same ids, so that their caches keep their names.
fn cache_key(corpus_hash: &str, corpus: &Corpus, tokenizer: &ResolvedTokenizer, config: &DataConfig) -> String {
    let conversations = match tokenizer {
        ResolvedTokenizer::File { tokenizer, .. } => tokenizer.conversations.as_ref(),
        ResolvedTokenizer::Train { .. } => None,
    };
    let conversations = conversations.map(|encoder| format!(" conversations {}", encoder.key)).unwrap_or_default();
    let mut tokenizer = match tokenizer {
        ResolvedTokenizer::Train { vocab_size, .. } => format!("train {TRAINING_VERSION} {vocab_size}"),
        ResolvedTokenizer::File { tokenizer, .. } => file_key(tokenizer, ends_documents_at_tokens(config, corpus)),
    };
    if config.parse_special_tokens {
        tokenizer += " parse";
    }
    if corpus.source_ends.len() > 1 {
        tokenizer += &format!(" sources {:?}", corpus.source_ends);
    }
    if corpus.training_files < corpus.files.len() {
        tokenizer += &format!(" held out from {}", corpus.training_files);
    }
    if config.on_bad_record == OnBadRecord::Skip {
        tokenizer += " skip";
    }
    tokenizer += &conversations;
    let hash =
        blake3::hash(format!("stagecoach tokens {CACHE_FORMAT_VERSION}\n{corpus_hash}\n{tokenizer}\n").as_bytes());
    stagecoach_files::key(&hash.to_hex())
}

/// Whether documents end at every end-of-text token in a text or in a file of token ids.
fn ends_documents_at_tokens(config: &DataConfig, corpus: &Corpus) -> bool {
    config.parse_special_tokens || corpus.files.iter().any(|file| !file.format.is_text())
}

/// The part of a cache key for a tokenizer in a file, with the effects of the configurations beside it. With
/// `ends_documents_at_tokens`, documents end at every end-of-text token in a text or in a file of token ids.
fn file_key(tokenizer: &Tokenizer, ends_documents_at_tokens: bool) -> String {
    let special = tokenizer.special_tokens();
    let mut key = format!("file {}", tokenizer.hash());
    match special.frame() {
        Some(frame) => key += &format!(" {frame}"),
        None if ends_documents_at_tokens && special.eos.len() > 1 => key += &format!(" ends {:?}", special.eos),
        None => {}
    }
    if let (Some(pad), true) = (special.pad, tokenizer.keeps_padding_text()) {
        key += &format!(" pad {pad}");
    }
    key
}
