//! The corpus: the files that the patterns match, in the order of their paths, read as documents in bounded pieces.
//! Reading can start at any [`Cursor`] an earlier reading gave out, so that a killed tokenisation goes on where it was.

mod find;
mod ids;
mod json_lines;
mod pieces;
mod rows;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// The files of a job, in order.
pub(crate) struct Corpus {
    pub(crate) sources: Vec<Source>,
    pub(crate) text_field: String,
}

/// A file of the corpus.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Relative to the volume where the file lies on it.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Bytes.
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified: u64,
}

/// What a file holds, by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `.txt`: one document, kept byte for byte.
    Text,
    /// `.jsonl`: a document a line, in the text field.
    JsonLines,
    /// `.parquet`: a document a row, in the text column.
    Parquet,
    /// `.tokens`: 32-bit little-endian token ids, one document unless end-of-text ids split it.
    Ids32,
    /// `.u16`: the same with 16-bit ids.
    Ids16,
}

/// A place in the corpus at which reading can start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Index of the file.
    pub(crate) file: usize,
    /// Bytes of it that lie before; for `.parquet` always 0.
    pub(crate) offset: u64,
    /// Lines or rows that lie before.
    pub(crate) record: u64,
}

/// A piece of a document, or all of it.
pub(crate) struct Piece<'a> {
    pub(crate) content: Content<'a>,
    /// No more pieces of this document follow.
    pub(crate) ends: bool,
    /// Where reading goes on after this piece; `None` in the middle of a line or row.
    pub(crate) next: Option<Cursor>,
    /// Bytes of the corpus read so far.
    pub(crate) done: u64,
}

#[derive(Debug)]
pub(crate) enum Content<'a> {
    Text(&'a str),
    Ids {
        ids: &'a [u32],
        source: &'a Source,
        /// Index of the first one in its file.
        first: u64,
    },
}

/// What reading calls with every piece.
type Each<'a> = dyn FnMut(Piece) -> Result<(), DataError> + 'a;

impl Corpus {
    /// Bytes of all files.
    pub(crate) fn size(&self) -> u64 {
        self.sources.iter().map(|source| source.size).sum()
    }

    /// Calls `each` with everything from `from` on, in order. `cut`: long texts may come in pieces, cut before white space.
    ///
    /// # Errors
    /// What is wrong with a file, or the first error of `each`.
    pub(crate) fn read(&self, from: Cursor, cut: bool, each: &mut Each) -> Result<(), DataError> {
        let mut before: u64 = self.sources.iter().take(from.file).map(|source| source.size).sum();
        for (file, source) in self.sources.iter().enumerate().skip(from.file) {
            let start = if file == from.file { from } else { Cursor { file, ..Cursor::default() } };
            let each = &mut |piece: Piece| each(Piece { done: before + piece.done.min(source.size), ..piece });
            match source.kind {
                Kind::Text => text::read(source, start, cut, each),
                Kind::JsonLines => json_lines::read(source, &self.text_field, start, cut, each),
                Kind::Parquet => rows::read(source, &self.text_field, start, cut, each),
                Kind::Ids32 => ids::read(source, 4, start, each),
                Kind::Ids16 => ids::read(source, 2, start, each),
            }?;
            before += source.size;
        }
        Ok(())
    }
}
