//! The token cache. The folder `<cache>/<key>/` holds a corpus as token ids. The leader of a group fills the folder
//! once, and all jobs with this corpus and tokenizer share it. The key is a hash of the corpus's contents and the
//! tokenizer. The leader writes the tokens in parts, one after another, so that an interrupted run resumes after the
//! last complete part. It writes `meta.json` last, so a folder with `meta.json` is complete. A later start may only
//! rewrite `meta.json` and add the file of the document hashes.

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
use crate::document_tokens::token_form;
use crate::error::DataError;
use crate::prepared::PreparedCorpus;
use crate::tokenizer::{SpecialTokenIds, Tokenizer};
use crate::tokenizer_training::{MIN_VOCAB_SIZE, TRAINING_VERSION};
use build::{CacheBuilder, ResolvedTokenizer};
use meta::Meta;

/// The version of the cache's format, which is part of every cache key. Increment the version when the same corpus and
/// tokenizer are stored in another way.
const CACHE_FORMAT_VERSION: u32 = 1;

/// The number of corpus bytes per part. A crash loses at most the work on one part, which takes a few seconds.
const PART_BYTES: u64 = 16 << 20;

/// Finds the corpus, trains or reads the tokenizer, and tokenises the corpus. If the corpus is streamed (tokenised
/// while training runs), the function tokenises only the held-out documents. The function skips the work whose results
/// are in the cache. Concurrent calls are safe, but repeat each other's work. After a crash, the next call resumes. If
/// the data is invalid, the function removes the incomplete folder. It calls `progress` once for every piece of text,
/// often thousands of times a second.
///
/// # Errors
/// Fails with any [`DataError`].
pub fn prepare(config: &DataConfig, progress: &mut dyn FnMut(PrepareProgress)) -> Result<PreparedCorpus, DataError> {
    prepare_in_parts(config, PART_BYTES, progress)
}

/// Checks the corpus files and the tokenizer's file, if the job names one, without reading any text. Returns the size
/// of the tokenizer's vocabulary, or `None` if [`prepare`] will train the tokenizer.
///
/// # Errors
/// Fails like [`prepare`].
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

/// Returns the corpus and its tokenizer. If the tokenizer is trained on the corpus, the function prepares the corpus
/// first.
///
/// # Errors
/// Fails like [`prepare`].
pub(crate) fn corpus_and_tokenizer(config: &DataConfig) -> Result<(Corpus, Tokenizer), DataError> {
    Ok(match find_sources(config)? {
        (corpus, ResolvedTokenizer::File { tokenizer, .. }) => (corpus, *tokenizer),
        (corpus, ResolvedTokenizer::Train { .. }) => {
            let tokenizer = prepare(config, &mut |_| {})?.tokenizer(config)?;
            (corpus, tokenizer)
        }
    })
}

/// Checks that the files of `corpus` have the contents from which `prepared` was made.
///
/// # Errors
/// Fails if the contents differ, or if a changed file can't be read.
pub(crate) fn check_contents(config: &DataConfig, prepared: &PreparedCorpus, corpus: &Corpus) -> Result<(), DataError> {
    let hashes = meta::hash_files(corpus, &config.cache_root, &mut |_| {})?;
    match meta::corpus_hash(corpus, &hashes) == prepared.corpus_hash {
        true => Ok(()),
        false => {
            let problem = "the corpus has other files, or files with other contents, than when it was prepared for \
                           this start: wait until they are complete and run again";
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
                    id_bytes: token_form(&contents.tokenizer).id_bytes,
                    padding: contents.tokenizer.padding().unwrap_or(contents.eos_token_id),
                    special_tokens: contents.tokenizer.special_tokens().clone(),
                    chat_template: contents.tokenizer.conversations.as_ref().map(|it| it.template_hash.clone()),
                    template_parts: contents.tokenizer.conversations.as_ref().map(|it| it.template_parts.clone()),
                    findings: contents.findings,
                    notes: Vec::new(),
                };
                Meta { prepared: prepared.clone(), sources: hashes }.write(&path)?;
                builder.remove_parts();
                Ok(prepared)
            });
            match (built, Meta::load(&path)) {
                (Ok(prepared), _) => prepared,
                // A concurrent process has finished and removed the parts that this process was using.
                (Err(_), Some(meta)) => {
                    builder.remove_parts();
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
    // Crashed runs leave temporary files. Files that concurrent calls are still writing stay.
    stagecoach_files::remove_abandoned(&path);
    // The folder may have been written for a job with another padding token, or by an older version that recorded no
    // special tokens. So the padding token and the special tokens are taken from the tokenizer of this job.
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
    Dataset::open(config, &prepared)?; // fails for a corpus that is too short, before the stages start
    // The list of remote files is written last: if a job can't begin, the user's next start lists the sources again.
    corpus.remote_files.write()?;
    let notes = [corpus.notes(), prepared.findings.notes(&corpus.file_names())].concat();
    Ok(PreparedCorpus { notes, ..prepared })
}

/// Reads the tokenizer's file if the job names one, and checks that the tokenizer fits the corpus.
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
                let problem = "data.tokenizer is trained on the corpus, but conversations need the special tokens \
                               and the chat template of a model: set data.tokenizer.type to File and give the \
                               tokenizer of that model";
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

/// Returns the name of the cache's folder: 32 hexadecimal digits of a hash of everything that determines the ids. Older
/// versions lack some of the settings. Such a setting is hashed only if it can change the ids, so that the caches of
/// older versions keep their names.
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

/// Returns whether every end-of-text token ends a document, both in texts and in files of token ids.
fn ends_documents_at_tokens(config: &DataConfig, corpus: &Corpus) -> bool {
    config.parse_special_tokens || corpus.files.iter().any(|file| !file.format.is_text())
}

/// Returns the part of a cache key for a tokenizer file and the configuration files beside it. If
/// `ends_documents_at_tokens` is true, every end-of-text token in a text or in a file of token ids ends a document.
fn file_key(tokenizer: &Tokenizer, ends_documents_at_tokens: bool) -> String {
    let special = tokenizer.special_tokens();
    let mut key = format!("file {}", tokenizer.hash());
    match special.frame() {
        Some(frame) => key += &format!(" {frame}"),
        None if ends_documents_at_tokens && special.eos.len() > 1 => key += &format!(" ends {:?}", special.eos),
        None => {}
    }
    if let (Some(pad), true) = (special.pad, tokenizer.padding_stays_text()) {
        key += &format!(" pad {pad}");
    }
    key
}
