//! The cache of a streamed corpus. It holds the tokenizer and the held-out documents. The leader of the group reads the
//! training documents while training runs, and cuts their tokens into windows of a fixed number of sequences.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::build::{CacheContents, ResolvedTokenizer};
use crate::config::{DataConfig, HeldOut, PrepareProgress, Streaming};
use crate::corpus::{Corpus, Cursor};
use crate::document_tokens::{DocumentTokens, token_form};
use crate::error::DataError;
use crate::findings::Findings;
use crate::prepared::PreparedSource;
use crate::streaming::{StreamPosition, WindowReader, WindowStore, sample, write_tokens};
use crate::text_batch::{ENCODE_BATCH_BYTES, TextBatch};
use crate::tokenizer::Tokenizer;

/// The version of the division into windows, which is part of every cache key of a stream. Increment the version when
/// the same sources are cut into other windows than before.
const STREAM_VERSION: u32 = 2;

/// The total number of bytes of text, from all sources, on which a tokenizer is trained.
const TOKENIZER_SAMPLE_BYTES: u64 = 256 << 20;

/// Returns the name of the stream's folder, which depends on everything that determines the stream's windows. `tokens`
/// is the cache key of the corpus and the tokenizer.
pub(super) fn key(tokens: &str, config: &DataConfig, streaming: &Streaming) -> String {
    let Streaming { window_sequences, block_bytes, folder: _, max_bytes: _ } = streaming;
    let held_out = match config.held_out {
        HeldOut::Documents(fraction) => fraction,
        HeldOut::Nothing | HeldOut::LastSequences(_) => 0.0,
    };
    let key = format!(
        "stagecoach stream {STREAM_VERSION}\n{tokens}\nseed {} windows of {window_sequences} x {} packed {} blocks of {block_bytes} held out {held_out}\n",
        config.seed, config.sequence_length, config.packing,
    );
    stagecoach_files::key(&blake3::hash(key.as_bytes()).to_hex())
}

/// Fills the cache of a streamed corpus, except for `meta.json`.
///
/// # Errors
/// Fails with any [`DataError`].
pub(super) fn build(
    (config, streaming): (&DataConfig, &Streaming),
    (corpus, tokenizer): (&Corpus, &ResolvedTokenizer),
    folder: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<CacheContents, DataError> {
    let path = &config.cache_root.join(folder);
    fs::create_dir_all(path).map_err(DataError::io("create", path))?;
    let tokenizer = tokenizer.prepare(path, |on_text| read_sample(config, streaming, corpus, on_text, progress))?;
    let held_out = HeldOutDocuments::read(config, streaming, corpus, &tokenizer, folder, progress)?;
    write_tokens(path, &held_out.ids, &held_out.starts, token_form(&tokenizer))?;
    Ok(CacheContents {
        eos_token_id: tokenizer.require_eos_token()?,
        tokenizer,
        sources: held_out.parts,
        tokens: held_out.ids.len() as u64,
        documents: held_out.starts.len() as u64,
        empty_documents: held_out.empty,
        findings: held_out.findings,
    })
}

/// Passes the beginning of each source's stream to `on_text`. A tokenizer is trained on these texts.
fn read_sample(
    config: &DataConfig,
    streaming: &Streaming,
    corpus: &Corpus,
    on_text: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<(), DataError> {
    let bytes_total = TOKENIZER_SAMPLE_BYTES.min(corpus.size());
    let mut done = 0;
    for source in 0..config.sources.len() {
        let max_bytes = TOKENIZER_SAMPLE_BYTES / config.sources.len() as u64;
        sample(config, streaming, (corpus, source), max_bytes, &mut |text| {
            done += text.len() as u64;
            let bytes_done = done.min(bytes_total);
            progress(PrepareProgress { phase: "training the tokenizer", bytes_done, bytes_total });
            on_text(text);
        })?;
    }
    Ok(())
}

/// The held-out documents of a stream: first the documents that are drawn by hash from each source, then the documents
/// of each set of held-out files.
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
        folder: &Path,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<HeldOutDocuments, DataError> {
        let mut held_out = HeldOutDocuments::default();
        for source in 0..config.sources.len() {
            match config.held_out {
                HeldOut::Documents(fraction) => {
                    let store = WindowStore::new(streaming, folder, source, token_form(tokenizer));
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

    /// Reads the first window of a source, and adds the documents that are drawn by hash to be held out. If these
    /// documents have fewer tokens than a held-out set needs, the function reads further windows. It writes only the
    /// first window.
    fn draw(
        &mut self,
        (config, streaming, fraction): (&DataConfig, &Streaming, f64),
        (corpus, source): (&Corpus, usize),
        tokenizer: &Tokenizer,
        store: &WindowStore,
        progress: &mut dyn FnMut(PrepareProgress),
    ) -> Result<(), DataError> {
        store.remove_unfinished()?;
        let start = StreamPosition::default();
        let mut reader = WindowReader::new(config, streaming, (corpus, source), tokenizer, start, true)?;
        let least = config.least_held_out_tokens(config.sources[source].format) as usize;
        // a token of text is about four bytes
        let bytes_total = 4 * streaming.window_sequences * config.sequence_length as u64;
        let mut on_tokens = |tokens: u64| {
            let bytes_done = (4 * tokens).min(bytes_total);
            progress(PrepareProgress { phase: "reading the first window", bytes_done, bytes_total });
            true
        };
        reader.read(&mut on_tokens, &mut |window, drawn| {
            if window.start == StreamPosition::default() {
                store.write(&window)?;
            }
            let is_enough = drawn.ids.len() >= least;
            if !is_enough && drawn.is_complete {
                return Err(DataError::NothingDrawn {
                    subject: config.sources[source].subject(),
                    fraction,
                    documents: window.next.counts().documents,
                });
            }
            Ok(!is_enough)
        })?;
        self.findings.add(reader.findings());
        let drawn = reader.drawn();
        self.add(&drawn.ids, &drawn.starts);
        Ok(())
    }

    /// Adds all documents of `files`.
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
        let mut batch = TextBatch::default();
        let cursor = Cursor { file: files.start, ..Cursor::default() };
        corpus.read_until(cursor, end, tokenizer.split(), &mut |piece| {
            batch.add(&piece, &mut documents)?;
            if batch.bytes() >= ENCODE_BATCH_BYTES {
                batch.flush(&mut documents)?;
                let bytes_done = piece.bytes_read - before;
                progress(PrepareProgress { phase: "tokenising the held-out files", bytes_done, bytes_total });
            }
            Ok(())
        })?;
        batch.flush(&mut documents)?;
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
