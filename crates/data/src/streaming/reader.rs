//! Reads the blocks of a source, and divides the documents into windows.

use std::mem::take;

use super::batch::{Batch, Item, Tokenised};
use super::blocks::BlockOrder;
use super::buffer::{WindowBuffer, WindowSize, WindowTokens};
use super::position::{DocumentCounts, DocumentId, ReadPosition, StreamPosition};
use crate::config::{DataConfig, HeldOut, Streaming};
use crate::corpus::{Content, Corpus, Piece};
use crate::document_hashes::document_hash;
use crate::document_tokens::DocumentTokens;
use crate::error::DataError;
use crate::findings::Findings;
use crate::held_out::HeldOutSampler;
use crate::order;
use crate::tokenizer::Tokenizer;
use crate::without_documents::without_documents;

/// The largest number of tokens, at the beginning of a document, whose hash decides whether the document is held out.
/// The number is limited, because a document may be larger than the memory.
const HASHED_TOKENS: usize = 1 << 14;

/// Reads a source from a position on.
pub(crate) struct WindowReader<'a> {
    corpus: &'a Corpus,
    source: usize,
    blocks: BlockOrder,
    draw: Option<HeldOutSampler>,
    documents: DocumentTokens<'a>,
    /// The current document.
    document: DocumentId,
    /// The document that begins next.
    next: DocumentId,
    /// The part of the corpus, training or held out, to which the current document belongs.
    part: Part,
    batch: Batch,
    buffer: WindowBuffer,
    counts: DocumentCounts,
    at: ReadPosition,
    drawn: DrawnDocuments,
    is_over: bool,
}

/// The held-out documents of the first windows of a source.
#[derive(Default)]
pub(crate) struct DrawnDocuments {
    pub(crate) ids: Vec<u32>,
    pub(crate) starts: Vec<u64>,
    /// Whether the reader adds no more documents, for example after the first epoch.
    pub(crate) is_complete: bool,
    /// The number of held-out tokens at which the reader stops adding documents.
    enough: usize,
}

enum Part {
    /// The decision whether the document is held out needs more of its tokens. The value holds the tokens read so far.
    Undecided(Vec<u32>),
    Training,
    HeldOut,
}

/// Receives each window, and returns whether the reader continues.
type OnWindow<'f> = dyn FnMut(WindowTokens, &DrawnDocuments) -> Result<bool, DataError> + 'f;

impl<'a> WindowReader<'a> {
    /// Returns a reader of the source with the index `source`, from the window at `start` on. If `collects` is true,
    /// the reader collects the held-out documents.
    ///
    /// # Errors
    /// Fails if the tokenizer has no end-of-text token.
    pub(crate) fn new(
        config: &DataConfig,
        streaming: &Streaming,
        (corpus, source): (&'a Corpus, usize),
        tokenizer: &'a Tokenizer,
        start: StreamPosition,
        collects: bool,
    ) -> Result<WindowReader<'a>, DataError> {
        let size = WindowSize {
            sequences: streaming.window_sequences,
            length: config.sequence_length as u64,
            cut: config.cut(config.sources[source].format),
        };
        let seed = order::seed_of_source(config.seed, source);
        let mut documents = DocumentTokens::new(tokenizer, start.read.inside)?;
        documents.findings = start.counts.findings.clone();
        Ok(WindowReader {
            corpus,
            source,
            blocks: BlockOrder::new(corpus, corpus.files_of(source), streaming.block_bytes, seed),
            draw: match config.held_out {
                HeldOut::Documents(fraction) => Some(HeldOutSampler::new(fraction, config.seed)),
                HeldOut::Nothing | HeldOut::LastSequences(_) => None,
            },
            documents,
            document: DocumentId::default(),
            next: DocumentId::default(),
            part: Part::Training,
            batch: Batch::default(),
            counts: start.counts.clone(),
            at: start.read,
            buffer: WindowBuffer::new(size, start),
            drawn: DrawnDocuments {
                is_complete: !collects,
                enough: (size.sequences * size.length) as usize + 1,
                ..DrawnDocuments::default()
            },
            is_over: false,
        })
    }

    /// Reads epoch after epoch until `on_window` or `on_tokens` returns false. `on_tokens` repeatedly receives the
    /// number of tokens that the current window has so far.
    ///
    /// # Errors
    /// Fails if the source can't be read, has changed, or has no text, or if `on_window` fails.
    pub(crate) fn read(
        &mut self,
        on_tokens: &mut dyn FnMut(u64) -> bool,
        on_window: &mut OnWindow,
    ) -> Result<(), DataError> {
        let tokenizer = self.documents.tokenizer();
        let mut documents_before = None;
        loop {
            if self.at == (ReadPosition { epoch: self.at.epoch, ..ReadPosition::default() }) {
                if documents_before.replace(self.counts.documents) == Some(self.counts.documents) {
                    let files = self.corpus.files_of(self.source);
                    return Err(without_documents(self.corpus, files, &self.documents.findings));
                }
                // the first epoch has collected all held-out documents
                self.drawn.is_complete |= self.at.epoch > 0;
            }
            let (block, begun) = (self.blocks.at(self.at), self.at);
            let (corpus, file) = (self.corpus, &self.corpus.files[block.file]);
            self.next = DocumentId { file: block.file, record: begun.record + 1 };
            if begun.inside {
                self.document = self.next;
                self.next.record += 1;
            }
            let cursor = begun.cursor(block.file);
            let read = corpus.read_part(cursor, block.part, tokenizer.split(), &mut |piece| {
                self.add(begun, piece, on_window)?;
                if self.batch.is_empty() && !on_tokens(self.buffer.tokens()) {
                    self.is_over = true;
                }
                if self.is_over { Err(DataError::WaitEnded) } else { Ok(()) }
            });
            if !self.is_over {
                // the read does not fail if the file has become shorter
                file.check_unchanged()?;
            }
            if read.is_ok() {
                self.at = self.blocks.after(begun);
                self.batch.push(Item::Point(self.at));
            }
            if !self.is_over {
                // windows that end before an unreadable record are still completed
                self.flush(on_window)?;
            }
            if self.is_over || !on_tokens(self.buffer.tokens()) {
                return Ok(());
            }
            read?;
        }
    }

    /// Returns the findings about the texts from the beginning of the stream.
    pub(crate) fn findings(&self) -> &Findings {
        &self.documents.findings
    }

    /// Returns the held-out documents that the reader has collected.
    pub(crate) fn drawn(&self) -> &DrawnDocuments {
        &self.drawn
    }

    fn add(&mut self, block: ReadPosition, piece: Piece, on_window: &mut OnWindow) -> Result<(), DataError> {
        match &piece.content {
            Content::Text(text) => {
                let document = DocumentId { file: self.blocks.at(block).file, record: piece.record };
                self.batch.push_text(document, text, piece.is_last);
            }
            Content::Conversation(record) => {
                let document = DocumentId { file: record.file, record: piece.record };
                self.batch.push_conversation(document, record);
            }
            Content::LoneSurrogates(count) => self.batch.push(Item::LoneSurrogates(*count)),
            Content::BadRecord(bad) => self.batch.push(Item::BadRecord { file: bad.file, reason: bad.reason }),
            Content::Ids { .. } => {
                self.flush(on_window)?;
                self.documents.push_token_ids(&piece)?;
                self.distribute_tokens(on_window)?;
            }
        }
        if let Some(mut cursor) = piece.resume_at {
            if matches!(piece.content, Content::Ids { .. }) {
                // only special tokens show where documents end in a token file
                cursor.record = self.next.record - 1 - u64::from(self.documents.is_inside());
            }
            self.batch.push(Item::Point(self.blocks.resume_at(block, cursor)));
        }
        if self.batch.is_full() { self.flush(on_window) } else { Ok(()) }
    }

    /// Tokenises the batch, and adds its documents to the windows or to the held-out documents.
    fn flush(&mut self, on_window: &mut OnWindow) -> Result<(), DataError> {
        let Tokenised { items, texts, mut conversations } = self.batch.tokenise(self.documents.tokenizer())?;
        for item in items {
            match item {
                Item::Text { index, document, has_text, is_last } => {
                    self.next = document;
                    let (ids, findings) = &texts[index];
                    self.documents.findings.add(findings);
                    self.documents.push_text(ids, has_text);
                    if is_last {
                        self.documents.end_document();
                    }
                    self.distribute_tokens(on_window)?;
                }
                Item::Conversation { index, document } => {
                    self.next = document;
                    let (record, encoded) = &mut conversations[index];
                    if let Some(encoded) = encoded.take() {
                        self.documents.push_conversation(record, encoded)?;
                    }
                    self.distribute_tokens(on_window)?;
                }
                Item::BadRecord { file, reason } => self.documents.findings.bad_record(file, reason),
                Item::LoneSurrogates(count) => self.documents.findings.lone_surrogates += count,
                Item::Point(position) => {
                    let inside = self.documents.is_inside();
                    if !inside || matches!(self.part, Part::Training) {
                        let counts = DocumentCounts { findings: self.findings().clone(), ..self.counts };
                        self.buffer.mark(ReadPosition { inside, ..position }, counts);
                    }
                }
            }
            if self.is_over {
                break;
            }
        }
        Ok(())
    }

    /// Adds the new tokens to the windows or to the held-out documents.
    fn distribute_tokens(&mut self, on_window: &mut OnWindow) -> Result<(), DataError> {
        self.counts.empty += take(&mut self.documents.empty);
        let (ids, starts) = (take(&mut self.documents.ids), take(&mut self.documents.starts));
        let bounds: Vec<usize> = starts.iter().map(|&start| start as usize).chain([ids.len()]).collect();
        self.pass_on_document(&ids[..bounds[0]], false, bounds.len() > 1 || !self.documents.is_inside());
        for (number, bounds) in bounds.windows(2).enumerate() {
            let ends = number + 1 < starts.len() || !self.documents.is_inside();
            self.pass_on_document(&ids[bounds[0]..bounds[1]], true, ends);
        }
        while let Some(window) = self.buffer.take_window() {
            // a window must not hold new contents of a changed file
            self.corpus.files[self.next.file].check_unchanged()?;
            if !on_window(window, &self.drawn)? {
                self.is_over = true;
                break;
            }
        }
        Ok(())
    }

    /// Adds tokens of one document. `is_start` is true for the first tokens of the document, and `ends` for the last
    /// tokens.
    fn pass_on_document(&mut self, ids: &[u32], is_start: bool, ends: bool) {
        if ids.is_empty() {
            return;
        }
        if is_start {
            self.document = self.next;
            self.next.record += 1;
            self.part = Part::Undecided(Vec::new());
        }
        match &mut self.part {
            Part::Training => self.buffer.push(self.document, ids, is_start, ends),
            Part::HeldOut => self.hold_out(ids, false),
            Part::Undecided(first) => {
                first.extend(ids);
                if ends || first.len() >= HASHED_TOKENS || self.draw.is_none() {
                    let first = take(first);
                    if self
                        .draw
                        .is_some_and(|draw| draw.holds_out(document_hash(&first[..first.len().min(HASHED_TOKENS)])))
                    {
                        self.part = Part::HeldOut;
                        self.counts.held_out += 1;
                        self.hold_out(&first, true);
                    } else {
                        self.part = Part::Training;
                        self.counts.documents += 1;
                        self.buffer.push(self.document, &first, true, ends);
                    }
                }
            }
        }
    }

    fn hold_out(&mut self, ids: &[u32], is_start: bool) {
        let drawn = &mut self.drawn;
        if !drawn.is_complete && drawn.ids.len() < drawn.enough {
            drawn.starts.extend(is_start.then_some(drawn.ids.len() as u64));
            drawn.ids.extend(ids);
        }
    }
}
