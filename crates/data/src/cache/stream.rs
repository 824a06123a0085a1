//! Prepares a streamed corpus: the tokenizer, and the documents that are held out. The documents to train on are read
//! while training needs them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::build::ResolvedTokenizer;
use super::{Meta, cache_key, find_sources, meta};
use crate::atomic_file::write_bytes_atomically;
use crate::config::{DataConfig, HeldOut, PrepareProgress, Streaming};
use crate::corpus::{Content, Corpus, Cursor};
use crate::dataset::Dataset;
use crate::document_tokens::{DocumentTokens, id_bytes};
use crate::error::DataError;
use crate::findings::Findings;
use crate::prepared::{PreparedCorpus, PreparedSource, TOKENIZER_FILE};
use crate::streaming::{StreamPosition, WindowReader, WindowStore, sample, write_tokens};
use crate::tokenizer::Tokenizer;
use crate::tokenizer_training;

/// Part of every cache key of a stream. Increment it when the same sources have other windows.
const STREAM_VERSION: u32 = 1;

/// Bytes of text, of all sources together, on which a tokenizer is trained.
const TOKENIZER_SAMPLE_BYTES: u64 = 256 << 20;

/// Bytes of text that are tokenised together.
const BATCH_BYTES: usize = 1 << 20;

/// [`prepare`](super::prepare) for a streamed corpus.
///
/// # Errors
/// Any [`DataError`].
pub(super) fn prepare(
    config: &DataConfig,
    streaming: &Streaming,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<PreparedCorpus, DataError> {
    let (corpus, tokenizer) = find_sources(config)?;
    let hashes = meta::hash_files(&corpus, &config.cache_root, progress)?;
    let corpus_hash = meta::corpus_hash(&corpus, &hashes);
    let folder = PathBuf::from(stream_key(&cache_key(&corpus_hash, &corpus, &tokenizer, config), config, streaming));
    let path = config.cache_root.join(&folder);
    let prepared = match Meta::load(&path) {
        Some(meta) => {
            meta.refresh(&path, hashes)?;
            meta.prepared
        }
        None => {
            fs::create_dir_all(&path).map_err(DataError::io("create", &path))?;
            let tokenizer = resolve(config, streaming, &corpus, tokenizer, &path.join(TOKENIZER_FILE), progress)?;
            let windows = streaming.folder.join(&folder);
            let held_out = HeldOutDocuments::read(config, streaming, &corpus, &tokenizer, &windows, progress)?;
            write_tokens(&path, &held_out.ids, &held_out.starts, id_bytes(&tokenizer))?;
            let prepared = PreparedCorpus {
                folder,
                corpus_hash,
                tokenizer_hash: tokenizer.hash().to_owned(),
                by_source: held_out.parts,
                tokens: held_out.ids.len() as u64,
                documents: held_out.starts.len() as u64,
                empty_documents: held_out.empty,
                vocab_size: tokenizer.vocab_size(),
                id_bytes: id_bytes(&tokenizer),
                padding: tokenizer.special_tokens().pad.unwrap_or(tokenizer.require_eos_token()?),
                special_tokens: tokenizer.special_tokens().clone(),
                findings: held_out.findings,
                notes: Vec::new(),
            };
            Meta { prepared: prepared.clone(), sources: hashes }.write(&path)?;
            prepared
        }
    };
    Dataset::open(config, &prepared)?; // reports a held-out set that is too short before the stages start
    corpus.remote_files.write()?;
    let notes = [corpus.notes(), prepared.findings.notes(&corpus.file_names())].concat();
    Ok(PreparedCorpus { notes, ..prepared })
}

/// Name of the stream's folder, which depends on everything that decides its windows.
fn stream_key(tokens: &str, config: &DataConfig, streaming: &Streaming) -> String {
    let Streaming { window_sequences, block_bytes, folder: _, max_bytes: _ } = streaming;
    let held_out = match config.held_out {
        HeldOut::Documents(fraction) => fraction,
        HeldOut::Nothing | HeldOut::LastSequences(_) => 0.0,
    };
    let key = format!(
        "stagecoach stream {STREAM_VERSION}\n{tokens}\nseed {} windows of {window_sequences} x {} packed {} blocks of {block_bytes} held out {held_out}\n",
        config.seed, config.sequence_length, config.packing,
    );
    blake3::hash(key.as_bytes()).to_hex()[..32].to_owned()
}

/// The tokenizer, whose file is at `path` afterwards. It is the given one, or the one at `path`, or is trained now on the
/// beginnings of the streams.
fn resolve(
    config: &DataConfig,
    streaming: &Streaming,
    corpus: &Corpus,
    tokenizer: ResolvedTokenizer,
    path: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Tokenizer, DataError> {
    let (vocab_size, parse) = match tokenizer {
        ResolvedTokenizer::File { tokenizer, bytes } => {
            write_bytes_atomically(path, &bytes)?;
            return Ok(*tokenizer);
        }
        ResolvedTokenizer::Train { vocab_size, parse } => (vocab_size, parse),
    };
    if let Ok((trained, _)) = Tokenizer::read(path, parse) {
        return Ok(trained);
    }
    let sources = config.sources.len() as u64;
    let bytes_total = TOKENIZER_SAMPLE_BYTES.min(corpus.size());
    let mut done = 0;
    let json = tokenizer_training::train(vocab_size, path, |on_text| {
        for source in 0..config.sources.len() {
            sample(config, streaming, (corpus, source), TOKENIZER_SAMPLE_BYTES / sources, &mut |text| {
                done += text.len() as u64;
                let bytes_done = done.min(bytes_total);
                progress(PrepareProgress { phase: "training the tokenizer", bytes_done, bytes_total });
                on_text(text);
            })?;
        }
        Ok(())
    })?;
    write_bytes_atomically(path, &json)?;
    Ok(Tokenizer::read(path, parse)?.0)
}

/// The held-out documents of a stream: the drawn ones of each source, then those of each set of files.
#[derive(Default)]
struct HeldOutDocuments {
    ids: Vec<u32>,
    starts: Vec<u64>,
    parts: Vec<PreparedSource>,
    empty: u64,
    findings: Findings,
}

impl HeldOutDocuments {
    fn read(
        config: &DataConfig,
        streaming: &Streaming,
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        windows: &Path,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<HeldOutDocuments, DataError> {
        let mut held_out = HeldOutDocuments::default();
        for source in 0..config.sources.len() {
            match config.held_out {
                HeldOut::Documents(fraction) => {
                    let store = WindowStore::new(windows, source, id_bytes(tokenizer));
                    held_out.draw((config, streaming, fraction), (corpus, source), tokenizer, &store, progress)?;
                }
                HeldOut::Nothing | HeldOut::LastSequences(_) => held_out.add(&[], &[]),
            }
        }
        for set in config.sources.len()..corpus.source_ends.len() {
            held_out.read_files(corpus, corpus.files_of(set), tokenizer, progress)?;
        }
        Ok(held_out)
    }

    /// Adds the documents that are drawn from the first window of a source, or from as many windows as have a sequence of
    /// them. The first window is written.
    fn draw(
        &mut self,
        (config, streaming, fraction): (&DataConfig, &Streaming, f64),
        (corpus, source): (&Corpus, usize),
        tokenizer: &Tokenizer,
        store: &WindowStore,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<(), DataError> {
        let start = StreamPosition::default();
        let mut reader = WindowReader::new(config, streaming, (corpus, source), tokenizer, start, true)?;
        let least = config.least_held_out_tokens() as usize;
        // a token of text is about four bytes
        let bytes_total = 4 * streaming.window_sequences * config.sequence_length as u64;
        let mut on_tokens = |tokens: u64| {
            let bytes_done = (4 * tokens).min(bytes_total);
            progress(PrepareProgress { phase: "reading the first window", bytes_done, bytes_total });
        };
        let mut drawn_documents = None;
        reader.read(&mut on_tokens, &mut |window, drawn| {
            if window.start == StreamPosition::default() {
                store.write(&window)?;
            }
            let Some(drawn) = drawn else { return Ok(false) };
            if drawn.ids.len() < least && drawn.is_complete {
                return Err(DataError::NothingDrawn {
                    subject: config.sources[source].subject(),
                    fraction,
                    documents: window.next.counts().documents,
                });
            }
            let is_enough = drawn.ids.len() >= least;
            if is_enough {
                drawn_documents = Some((drawn.ids.clone(), drawn.starts.clone()));
            }
            Ok(!is_enough)
        })?;
        self.findings.add(reader.findings());
        let (ids, starts) = drawn_documents.unwrap_or_default();
        self.add(&ids, &starts);
        Ok(())
    }

    /// Adds all documents of these files.
    fn read_files(
        &mut self,
        corpus: &Corpus,
        files: Range<usize>,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<(), DataError> {
        let mut documents = DocumentTokens::new(tokenizer, false)?;
        let (before, end) = (corpus.bytes_before(files.start), files.end);
        let bytes_total = corpus.bytes_before(end) - before;
        let (mut texts, mut bytes) = (Vec::new(), 0);
        let cursor = Cursor { file: files.start, ..Cursor::default() };
        corpus.read_until(cursor, end, tokenizer.split(), &mut |piece| {
            match &piece.content {
                Content::Text(text) => {
                    bytes += text.len();
                    texts.push(((*text).to_owned(), piece.is_last));
                }
                Content::LoneSurrogates(count) => documents.findings.lone_surrogates += count,
                Content::BadRecord(bad) => documents.findings.bad_record(bad.file, bad.reason),
                Content::Ids { .. } => {
                    push_texts(&mut documents, &mut texts)?;
                    documents.push_token_ids(&piece.content)?;
                    if piece.is_last {
                        documents.end_token_file();
                    }
                }
            }
            if bytes >= BATCH_BYTES {
                bytes = 0;
                push_texts(&mut documents, &mut texts)?;
                let bytes_done = piece.bytes_read - before;
                progress(PrepareProgress { phase: "tokenising the held-out files", bytes_done, bytes_total });
            }
            Ok(())
        })?;
        push_texts(&mut documents, &mut texts)?;
        self.findings.add(&documents.findings);
        self.empty += documents.empty;
        self.add(&documents.ids, &documents.starts);
        Ok(())
    }

    fn add(&mut self, ids: &[u32], starts: &[u64]) {
        let before = self.ids.len() as u64;
        self.ids.extend(ids);
        self.starts.extend(starts.iter().map(|start| before + start));
        self.parts.push(PreparedSource { documents: starts.len() as u64, tokens: ids.len() as u64 });
    }
}

/// Tokenises texts, each with a flag for whether it ends its document.
fn push_texts(documents: &mut DocumentTokens, texts: &mut Vec<(String, bool)>) -> Result<(), DataError> {
    let (texts, is_last): (Vec<String>, Vec<bool>) = std::mem::take(texts).into_iter().unzip();
    let has_text: Vec<bool> = texts.iter().map(|text| text.contains(|c: char| !c.is_whitespace())).collect();
    let ids = documents.tokenizer().encode_all(texts, &mut documents.findings)?;
    for ((ids, has_text), is_last) in ids.iter().zip(has_text).zip(is_last) {
        documents.push_text(ids, has_text);
        if is_last {
            documents.end_document();
        }
    }
    Ok(())
}
