//! Reads the corpus a second time: all files up to a document, or the requested records of a stream.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::DocumentName;
use crate::config::{DataConfig, PrepareProgress};
use crate::conversations::EncodedConversation;
use crate::corpus::{Content, ConversationRecord, Corpus, CorpusFile, Cursor};
use crate::error::DataError;
use crate::loss_mask::id_of;
use crate::prepared::PreparedCorpus;
use crate::streaming::DocumentId;
use crate::tokenizer::Tokenizer;

/// The largest gap between two requested records that is read instead of skipped. Records can only be skipped in files
/// that can be divided.
const MAX_GAP: u64 = 1000;

/// The corpus and the tokenizer for a second reading.
pub(super) struct Walk {
    pub(super) corpus: Corpus,
    pub(super) tokenizer: Tokenizer,
}

/// The documents to read again.
pub(super) enum Documents {
    /// The documents of a token cache in the files up to the file with this index.
    UpToFile(usize),
    /// The documents of a token cache up to the document with this index.
    UpTo(u64),
    /// Documents of a stream.
    Records(BTreeSet<DocumentId>),
}

/// A piece of a document that has tokens.
pub(super) struct DocumentPiece<'a> {
    pub(super) file: &'a CorpusFile,
    /// See [`DocumentName::number`].
    pub(super) number: u64,
    /// See [`DocumentPart::document`](crate::DocumentPart::document).
    pub(super) document: u64,
    /// Whether the document begins with this piece.
    pub(super) is_first: bool,
    pub(super) content: PieceContent<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum PieceContent<'a> {
    Text(&'a str),
    Ids {
        ids: &'a [u32],
        /// The number of bytes per id in the file.
        width: usize,
    },
    /// All ids of a conversation.
    Conversation(&'a [u32]),
}

/// Receives every piece, in the order of the corpus.
pub(super) type OnPiece<'a> = dyn FnMut(&DocumentPiece) -> Result<(), DataError> + 'a;

impl Walk {
    pub(super) fn begin(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Walk, DataError> {
        Ok(Walk { corpus: Corpus::find(config)?, tokenizer: prepared.tokenizer(config)? })
    }

    /// Passes every piece of `documents` to `on_piece`, and may pass pieces of further documents. Documents are counted
    /// as in the cache: a document without tokens does not count.
    pub(super) fn run(
        &self,
        documents: &Documents,
        progress: &mut dyn FnMut(PrepareProgress),
        on_piece: &mut OnPiece,
    ) -> Result<(), DataError> {
        let runs: Vec<Run> = match documents {
            Documents::UpToFile(last) => (0..=*last).map(Run::whole).collect(),
            Documents::UpTo(_) => (0..self.corpus.files.len()).map(Run::whole).collect(),
            Documents::Records(records) => self.runs(records),
        };
        let is_stream = matches!(documents, Documents::Records(_));
        let files: BTreeSet<usize> = runs.iter().map(|run| run.file).collect();
        let bytes_total = files.iter().map(|&file| self.corpus.files[file].stamp.size).sum();
        let (mut documents_before, mut bytes_before) = (0, 0);
        let mut previous = None;
        for Run { file: index, records } in runs {
            let file = &self.corpus.files[index];
            let passed = previous.replace(index).filter(|&previous| previous != index);
            bytes_before += passed.map_or(0, |previous: usize| self.corpus.files[previous].stamp.size);
            let from = Cursor { file: index, record: records.start() - 1, ..Cursor::default() };
            let mut reader = FileWalk {
                walk: self,
                file,
                stream_file: is_stream.then_some(index),
                documents: documents_before,
                number: 0,
                is_open: false,
            };
            let read = self.corpus.read_file(from, self.tokenizer.split(), &mut |piece| {
                let number = match piece.content {
                    Content::Ids { .. } => reader.number,
                    _ => piece.record,
                };
                if number > *records.end() {
                    return Err(DataError::WaitEnded);
                }
                match piece.content {
                    Content::Text(text) => reader.text(text, piece.record, piece.is_last, on_piece)?,
                    Content::Conversation(record) => reader.conversation(record, piece.record, on_piece)?,
                    Content::Ids { ids, width, .. } => reader.ids(ids, width, piece.is_last, on_piece)?,
                    Content::LoneSurrogates(_) | Content::BadRecord(_) => {}
                }
                let bytes_done = bytes_before + piece.bytes_read.min(file.stamp.size);
                progress(PrepareProgress { phase: "finding documents", bytes_done, bytes_total });
                Ok(())
            });
            match read {
                Err(DataError::WaitEnded) => {}
                read => read?,
            }
            documents_before = reader.documents;
            if matches!(documents, Documents::UpTo(last) if reader.documents > *last) {
                break;
            }
        }
        // the files after the last document are not read
        progress(PrepareProgress { phase: "finding documents", bytes_done: bytes_total, bytes_total });
        Ok(())
    }

    /// Returns the parts of files that contain the given documents of a stream.
    fn runs(&self, documents: &BTreeSet<DocumentId>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &DocumentId { file, record } in documents {
            // the caller reports a document whose file no longer exists
            let Some(can_skip) = self.corpus.files.get(file).map(CorpusFile::can_be_divided) else { continue };
            match runs.last_mut() {
                Some(run) if run.file == file && (!can_skip || record - run.records.end() <= MAX_GAP) => {
                    run.records = *run.records.start()..=record;
                }
                _ => runs.push(Run { file, records: if can_skip { record } else { 1 }..=record }),
            }
        }
        runs
    }

    /// Returns the [`DocumentId::number`] of the document that `name` names in a streamed corpus.
    pub(super) fn number_of(&self, name: &DocumentName) -> Result<u64, DataError> {
        let file = self.corpus.files.iter().position(|file| file.name == name.file);
        let id = file.and_then(|file| {
            let record = name.number.checked_add(1)?.checked_sub(self.corpus.files[file].format.first_unit)?;
            DocumentId::new(file, record).filter(|_| record > 0).map(DocumentId::number)
        });
        id.ok_or_else(|| DataError::NoDocument {
            name: name.to_string(),
            problem: "a file has no document with this number".into(),
        })
    }

    /// Returns the name of a document for an error.
    pub(super) fn name_of(&self, document: u64, config: &DataConfig) -> String {
        let DocumentId { file, record } = DocumentId::of_number(document);
        match self.corpus.files.get(file).filter(|_| config.streaming.is_some()) {
            Some(file) => DocumentName { file: file.name.clone(), number: file.format.number_of(record) }.to_string(),
            None => format!("document {document}"),
        }
    }
}

/// A range of records of a file. Records are numbered from 1.
struct Run {
    file: usize,
    records: RangeInclusive<u64>,
}

impl Run {
    fn whole(file: usize) -> Run {
        Run { file, records: 1..=u64::MAX }
    }
}

/// The state of the second reading within a file.
struct FileWalk<'a> {
    walk: &'a Walk,
    file: &'a CorpusFile,
    /// The index of the file, if the corpus is streamed.
    stream_file: Option<usize>,
    /// The index of the current document among the documents of the corpus that have tokens.
    documents: u64,
    /// The number of the current document in a file of token ids, from 1.
    number: u64,
    /// Whether the current document has begun.
    is_open: bool,
}

impl FileWalk<'_> {
    fn text(&mut self, text: &str, record: u64, is_last: bool, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let number = self.file.format.number_of(record);
        let tokenizer = &self.walk.tokenizer;
        // letters and digits have tokens if the tokenizer drops no characters; any other text must be tokenised to find
        // out
        let may_drop = tokenizer.lossy_encoding().may_drop_characters;
        let has_tokens = || match !may_drop && text.contains(char::is_alphanumeric) {
            true => Ok(true),
            false => tokenizer.encode(text).map(|ids| !ids.is_empty()),
        };
        if self.is_open || has_tokens()? {
            self.piece(PieceContent::Text(text), number, on_piece)?;
        }
        if is_last {
            self.end();
        }
        Ok(())
    }

    fn conversation(
        &mut self,
        conversation: &ConversationRecord,
        record: u64,
        on_piece: &mut OnPiece,
    ) -> Result<(), DataError> {
        let Some(encoder) = &self.walk.tokenizer.conversations else { return Ok(()) };
        if let EncodedConversation::Tokens { tokens, .. } = encoder.encode(conversation)? {
            let ids: Vec<u32> = tokens.into_iter().map(id_of).collect();
            self.piece(PieceContent::Conversation(&ids), self.file.format.number_of(record), on_piece)?;
            self.end();
        }
        Ok(())
    }

    /// Passes token ids to `on_piece`. Documents end at end-of-text tokens and at begin-of-text tokens.
    fn ids(&mut self, ids: &[u32], width: usize, is_last: bool, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let special = self.walk.tokenizer.special_tokens();
        let mut rest = ids;
        while !rest.is_empty() {
            let end = rest.iter().position(|&id| special.separates(id));
            let (of_document, behind) = rest.split_at(end.unwrap_or(rest.len()));
            if !of_document.is_empty() {
                self.number += u64::from(!self.is_open);
                self.piece(PieceContent::Ids { ids: of_document, width }, self.number, on_piece)?;
            }
            if end.is_some() {
                self.end();
            }
            rest = behind.get(1..).unwrap_or_default();
        }
        if is_last {
            self.end();
        }
        Ok(())
    }

    fn piece(&mut self, content: PieceContent, number: u64, on_piece: &mut OnPiece) -> Result<(), DataError> {
        let is_first = !std::mem::replace(&mut self.is_open, true);
        let record = number + 1 - self.file.format.first_unit;
        let document = self.stream_file.map_or(self.documents, |file| DocumentId { file, record }.number());
        let piece = DocumentPiece { file: self.file, number, document, is_first, content };
        on_piece(&piece)
    }

    fn end(&mut self) {
        self.documents += u64::from(std::mem::take(&mut self.is_open));
    }
}
