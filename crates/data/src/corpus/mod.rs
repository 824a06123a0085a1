//! The corpus: the files that the patterns match, in the order of their paths. A file is read as documents, in pieces
//! of bounded size. Reading can start at any [`Cursor`] from an earlier read, so an interrupted tokenisation resumes
//! where it stopped.

mod compression;
mod find;
mod formats;
mod pieces;
mod records;
#[cfg(test)]
mod tests;
mod text_reader;

use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde::{Deserialize, Serialize};

use crate::config::{DocumentFormat, OnBadRecord};
use crate::error::DataError;
use crate::source::{CountedSource, RemoteFiles, Source, SourceFile};
pub use compression::Compression;
use formats::ReadOptions;
pub(crate) use formats::{Contents, FieldBytes, with_compression};
pub use formats::{FORMATS, Format, document_numbers, text_formats};
pub(crate) use pieces::{METASPACE, SplitPoints};
pub(crate) use records::{BadRecord, BadRecordReason, ConversationRecord};
pub(crate) use text_reader::BYTE_ORDER_MARK;

/// The files of a job in order: first the sources, then the held-out sets. The files of each source or set are ordered
/// by path.
#[derive(Default)]
pub(crate) struct Corpus {
    pub(crate) files: Vec<CorpusFile>,
    /// The end of each source, and of each held-out set, as an index in `files`.
    pub(crate) source_ends: Vec<usize>,
    /// The number of files before the held-out sets.
    pub(crate) training_files: usize,
    pub(crate) on_bad_record: OnBadRecord,
    /// The files of remote sources, by pattern.
    pub(crate) remote_files: RemoteFiles,
    /// Folders that a pattern matches and that have the extension of a corpus file, relative to the volume's root.
    pub(crate) folders: BTreeSet<String>,
    /// Files that the patterns match more than once, relative to the volume's root.
    pub(crate) repeated: BTreeSet<String>,
    /// The files that a source and a held-out set both match. Training leaves them out.
    pub(crate) held_out: BTreeSet<String>,
}

/// A file of the corpus, with its source and its format.
#[derive(Clone, Debug)]
pub(crate) struct CorpusFile {
    file: SourceFile,
    pub(crate) format: &'static Format,
    pub(crate) compression: Option<Compression>,
    /// The content of the records.
    pub(crate) documents: DocumentFormat,
    /// The field that holds the text.
    pub(crate) text_field: String,
    source: Arc<dyn Source>,
}

impl CorpusFile {
    /// Returns the place of the record `record` in messages, such as `corpus/a.jsonl, line 3`. Records are counted from
    /// 1.
    fn location(&self, record: u64) -> String {
        format!("{}, {} {}", self.path.display(), self.format.unit, self.format.number_of(record))
    }
}

impl Deref for CorpusFile {
    type Target = SourceFile;

    fn deref(&self) -> &SourceFile {
        &self.file
    }
}

/// A position in the corpus at which reading can start. The token cache stores cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The index of the file in the corpus.
    pub(crate) file: usize,
    /// The number of bytes of the file before the position, decompressed; always 0 for `.parquet`.
    pub(crate) offset: u64,
    /// The number of lines, elements or rows of the file before the position.
    pub(crate) record: u64,
}

/// A part of a file whose format can be divided. The bytes of the file form `of` equal parts. A row group of a Parquet
/// file belongs to the part that contains its middle byte, so every row group is in exactly one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePart {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

impl FilePart {
    /// The whole file.
    pub(crate) const WHOLE: FilePart = FilePart { index: 0, of: 1 };

    /// Whether the row group at `bytes` of a file of `total` bytes is in the part.
    pub(crate) fn has(self, bytes: Range<u64>, total: u64) -> bool {
        let middle = u128::from(bytes.start) + u128::from(bytes.end);
        let part = middle * u128::from(self.of) / (2 * u128::from(total.max(1)));
        part.min(u128::from(self.of) - 1) == u128::from(self.index)
    }
}

/// A piece of a document, or a whole document.
pub(crate) struct Piece<'a> {
    pub(crate) content: Content<'a>,
    /// The number of lines, elements or rows of the file up to and including the document; 1 for a file that is one
    /// document.
    pub(crate) record: u64,
    /// Whether the document ends with this piece.
    pub(crate) is_last: bool,
    /// The cursor from which reading can resume after this piece; `None` in the middle of a line or row.
    pub(crate) resume_at: Option<Cursor>,
    /// The number of bytes of the corpus that have been read.
    pub(crate) bytes_read: u64,
}

#[derive(Debug)]
pub(crate) enum Content<'a> {
    Text(&'a str),
    Ids {
        ids: &'a [u32],
        /// Bytes per id in the file.
        width: usize,
        file: &'a CorpusFile,
        /// Index of the first id in the file.
        first_index: u64,
    },
    /// A conversation, which is a whole document.
    Conversation(&'a ConversationRecord),
    /// The number of lone surrogates that were replaced in the text of the next pieces. This content is not a piece of
    /// a document.
    LoneSurrogates(u64),
    /// A record that is left out. This content is not a piece of a document.
    BadRecord(BadRecord),
}

/// Receives every piece, in order.
type PieceHandler<'a> = dyn FnMut(Piece) -> Result<(), DataError> + 'a;

impl Corpus {
    /// Returns the size of all files in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes_before(self.files.len())
    }

    /// Returns the names of all files.
    pub(crate) fn file_names(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    /// Makes all later reads of the corpus add their bytes to `bytes`.
    pub(crate) fn count_bytes(&mut self, bytes: &Arc<AtomicU64>) {
        for file in &mut self.files {
            let source = Arc::clone(&file.source);
            file.source = Arc::new(CountedSource { source, bytes: Arc::clone(bytes) });
        }
    }

    /// Returns sentences for the user about files and folders that match a pattern but add no text to the corpus.
    pub(crate) fn notes(&self) -> Vec<String> {
        let empty: Vec<&str> = self.files.iter().filter(|f| f.stamp.size == 0).map(|file| file.name.as_str()).collect();
        let [folders, repeated, held_out] = [&self.folders, &self.repeated, &self.held_out]
            .map(|paths| paths.iter().map(String::as_str).collect::<Vec<_>>());
        let note =
            |names: Vec<&str>, sentence: &str| (!names.is_empty()).then(|| format!("{sentence}: {}", few(&names)));
        [
            note(empty, "data.paths matches empty files"),
            note(folders, "data.paths matches folders, which are ignored"),
            note(repeated, "data.paths matches files more than once: training reads each file once per epoch"),
            note(held_out, "data.paths and data.evaluation match the same files, and training excludes them"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns the index of the source that contains `cursor`. Held-out sets have the indices after the sources. A
    /// cursor at the end of the corpus is in the last source or set.
    pub(crate) fn source_at(&self, cursor: Cursor) -> usize {
        let source = self.source_ends.partition_point(|&end| end <= cursor.file);
        source.min(self.source_ends.len().saturating_sub(1))
    }

    /// Returns the range of files of a source. Held-out sets have the indices after the sources.
    pub(crate) fn files_of(&self, source: usize) -> Range<usize> {
        let start = source.checked_sub(1).map_or(0, |before| self.source_ends[before]);
        start..self.source_ends[source]
    }

    /// Returns the size of the first `files` files in bytes.
    pub(crate) fn bytes_before(&self, files: usize) -> u64 {
        self.files.iter().take(files).map(|file| file.stamp.size).sum()
    }

    /// Calls `on_piece` with every piece from `from` on, in order, and ends before the file with the index `end`.
    /// `split` gives the positions at which a long text may be split into pieces.
    ///
    /// # Errors
    /// Fails if a file is invalid or can't be read, or if `on_piece` fails.
    pub(crate) fn read_until(
        &self,
        from: Cursor,
        end: usize,
        split: SplitPoints,
        on_piece: &mut PieceHandler,
    ) -> Result<(), DataError> {
        let mut bytes_before = self.bytes_before(from.file);
        for (index, file) in self.files.iter().enumerate().take(end).skip(from.file) {
            let start = if index == from.file { from } else { Cursor { file: index, ..Cursor::default() } };
            let on_piece = &mut |piece: Piece| {
                on_piece(Piece { bytes_read: bytes_before + piece.bytes_read.min(file.stamp.size), ..piece })
            };
            self.read_file(start, split, on_piece)?;
            bytes_before += file.stamp.size;
        }
        Ok(())
    }

    /// Like [`Corpus::read_until`], but reads only the file of `from`. [`Piece::bytes_read`] counts from the start of
    /// the file.
    pub(crate) fn read_file(
        &self,
        from: Cursor,
        split: SplitPoints,
        on_piece: &mut PieceHandler,
    ) -> Result<(), DataError> {
        self.read_part(from, FilePart::WHOLE, split, on_piece)
    }

    /// Like [`Corpus::read_file`], but reads only one part of the file.
    pub(crate) fn read_part(
        &self,
        from: Cursor,
        part: FilePart,
        split: SplitPoints,
        on_piece: &mut PieceHandler,
    ) -> Result<(), DataError> {
        let file = &self.files[from.file];
        let options = ReadOptions {
            documents: file.documents,
            text_field: &file.text_field,
            split,
            on_bad_record: self.on_bad_record,
            part,
        };
        (file.format.read)(file, &options, from, &mut |piece| match piece.content {
            Content::BadRecord(bad) if self.on_bad_record == OnBadRecord::Fail => Err(bad.error),
            _ => on_piece(piece),
        })
    }
}

/// Returns the first three of `names`, followed by the number of further names.
pub(crate) fn few(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    names[..names.len() - more].join(", ") + &rest
}
