//! The formats of corpus files. A row of the table [`FORMATS`] has all facts of a format.

mod json_lines;
mod parquet_rows;
mod text;
mod token_ids;

use std::collections::BTreeMap;
use std::path::Path;

use super::pieces::Split;
use super::{CorpusFile, Cursor, PieceHandler};
use crate::error::DataError;

/// All formats.
pub static FORMATS: [Format; 5] =
    [text::TEXT, json_lines::JSON_LINES, parquet_rows::PARQUET, token_ids::IDS_32, token_ids::IDS_16];

/// A format of corpus files.
#[derive(Debug)]
pub struct Format {
    /// The extension of the files, without the dot.
    pub extension: &'static str,
    /// The contents of a file, for users.
    pub description: &'static str,
    /// The unit in which documents are numbered, such as "line".
    pub unit: &'static str,
    /// The number of a file's first unit, 0 or 1.
    pub first_unit: u64,
    /// The name in corpus hashes, which checkpoints record. It never changes once the format is released.
    pub(crate) hashed_name: &'static str,
    pub(crate) contents: Contents,
    pub(super) read: Read,
}

/// The kind of a file's contents.
#[derive(Debug)]
pub(crate) enum Contents {
    /// The whole file is the text of a document.
    PlainText,
    /// Documents are in a named field, and the corpus hash contains that name. `stagecoach init` finds the fields with
    /// this function.
    Fields(FindFields),
    /// Token ids, which need the tokenizer that made them.
    TokenIds,
}

/// The fields of a file that may hold text, each with an estimate of its bytes, or the reason why the file can't be
/// read.
pub(crate) type FindFields = fn(&CorpusFile) -> Result<BTreeMap<String, u64>, String>;

/// Reads the documents of a file from a cursor on. The arguments are the file, the field with the text, the cursor, the
/// positions at which a long text may be split, and the receiver of the pieces. A reader holds one record in memory,
/// never the whole file.
///
/// # Errors
/// Fails if the file can't be read or is damaged, if a record has no text, or if the receiver fails.
type Read = fn(&CorpusFile, &str, Cursor, Split, &mut PieceHandler) -> Result<(), DataError>;

impl Format {
    /// The format of the files that have the extension of `path`.
    pub(crate) fn of(path: &Path) -> Option<&'static Format> {
        let extension = path.extension()?;
        FORMATS.iter().find(|format| extension == format.extension)
    }

    /// Whether the files hold text, which any tokenizer can encode.
    pub fn is_text(&self) -> bool {
        !matches!(self.contents, Contents::TokenIds)
    }
}

/// The extensions of all formats, such as ".txt or .jsonl".
pub(super) fn extensions() -> String {
    list(FORMATS.iter().map(|format| format!(".{}", format.extension)))
}

/// The formats of text, such as ".txt files (one document) or .parquet files (a document in each row)".
pub fn text_formats() -> String {
    let formats = FORMATS.iter().filter(|format| format.is_text());
    list(formats.map(|format| format!(".{} files ({})", format.extension, format.description)))
}

/// The numbers of documents in their names, such as "the line of a .jsonl file (from 1) or the row of a .parquet file
/// (from 0)".
pub fn document_numbers() -> String {
    let number =
        |format: &Format| format!("the {} of a .{} file (from {})", format.unit, format.extension, format.first_unit);
    list(FORMATS.iter().map(number))
}

/// `a, b or c`.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    match items.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} or {last}", rest.join(", ")),
        _ => items.concat(),
    }
}
