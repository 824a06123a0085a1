//! The formats of corpus files. Each element of the table [`FORMATS`] describes one format.

mod json;
mod parquet;
mod text;
mod token_ids;

use std::collections::BTreeMap;
use std::path::Path;

use super::pieces::SplitPoints;
use super::{Compression, CorpusFile, Cursor, FilePart, PieceHandler};
use crate::config::{DocumentFormat, OnBadRecord};
use crate::error::DataError;

/// All formats of corpus files.
pub static FORMATS: [Format; 6] =
    [text::TEXT, json::JSON_LINES, json::JSON_ARRAY, self::parquet::PARQUET, token_ids::IDS_32, token_ids::IDS_16];

/// A format of corpus files.
#[derive(Debug)]
pub struct Format {
    /// The extension of the files, without the dot.
    pub extension: &'static str,
    /// A description of a file's contents for users.
    pub description: &'static str,
    /// The unit in which documents are numbered, such as "line".
    pub unit: &'static str,
    /// The number of a file's first unit, 0 or 1.
    pub first_unit: u64,
    /// Whether the files may be compressed.
    pub may_be_compressed: bool,
    /// Whether a part of a file can be read without reading the whole file.
    pub(crate) can_be_divided: bool,
    /// The name in corpus hashes. Checkpoints record corpus hashes, so the name of a released format never changes.
    pub(crate) hashed_name: &'static str,
    pub(crate) contents: Contents,
    pub(super) read: Read,
}

/// The kind of a file's contents.
#[derive(Debug)]
pub(crate) enum Contents {
    /// The whole file is the text of a document.
    PlainText,
    /// Documents are in a named field, and the corpus hash contains the field's name. The function finds the fields of
    /// a file for `stagecoach init`.
    Fields(FindFields),
    /// Token ids, which need the tokenizer that made them.
    TokenIds,
}

/// The fields of a file, each with an estimate of the bytes of its text.
#[derive(Debug, Default)]
pub(crate) struct FieldBytes {
    /// Fields that may hold text.
    pub(crate) texts: BTreeMap<String, u64>,
    /// Fields that hold conversations: lists of messages.
    pub(crate) conversations: BTreeMap<String, u64>,
}

/// Finds the fields of a file.
///
/// # Errors
/// Fails if the file can't be read or holds no records.
pub(crate) type FindFields = fn(&CorpusFile) -> Result<FieldBytes, DataError>;

/// The names of fields in which data sets store the text of a message.
const MESSAGE_TEXTS: [&str; 2] = ["content", "value"];

/// The options of reading a file's documents.
pub(super) struct ReadOptions<'a> {
    pub(super) documents: DocumentFormat,
    /// The field or column that holds the text.
    pub(super) text_field: &'a str,
    /// The positions at which a long text may be split.
    pub(super) split: SplitPoints,
    pub(super) on_bad_record: OnBadRecord,
    /// The part of the file to read. For a format that can't be divided, this is the whole file.
    pub(super) part: FilePart,
}

/// Reads the documents of a file from a cursor on. The last argument receives the pieces and the bad records. The
/// function holds one record in memory, never the whole file.
///
/// # Errors
/// Fails if the file can't be read or is damaged, or if the last argument fails.
type Read = fn(&CorpusFile, &ReadOptions, Cursor, &mut PieceHandler) -> Result<(), DataError>;

impl Format {
    /// Returns the format and the compression of files with the extensions of `path`, such as `.jsonl.gz`. Returns
    /// `None` if no format has these extensions.
    pub(crate) fn of(path: &Path) -> Option<(&'static Format, Option<Compression>)> {
        let (format, compression) = Format::named_by(path)?;
        (compression.is_none() || format.may_be_compressed).then_some((format, compression))
    }

    /// Like [`Format::of`], but accepts compressions that the format does not allow.
    fn named_by(path: &Path) -> Option<(&'static Format, Option<Compression>)> {
        let extension = path.extension()?;
        let compression = Compression::ALL.into_iter().find(|compression| extension == compression.extension());
        let inner = match compression {
            Some(_) => Path::new(path.file_stem()?).extension()?,
            None => extension,
        };
        Some((FORMATS.iter().find(|format| inner == format.extension)?, compression))
    }

    /// Returns the number by which messages name the record `record` of a file. Records are counted from 1.
    pub(crate) fn number_of(&self, record: u64) -> u64 {
        self.first_unit + record - 1
    }

    /// Whether the files hold records with fields.
    pub(super) fn has_records(&self) -> bool {
        matches!(self.contents, Contents::Fields(_))
    }

    /// Whether the files hold text, which any tokenizer can encode.
    pub fn is_text(&self) -> bool {
        !matches!(self.contents, Contents::TokenIds)
    }
}

/// Returns `name`, followed by the extension of the compression if there is one.
pub(crate) fn with_compression(name: &str, compression: Option<Compression>) -> String {
    match compression {
        Some(compression) => format!("{name}.{}", compression.extension()),
        None => name.to_owned(),
    }
}

/// Returns the error for a file whose extensions belong to no format.
pub(super) fn unknown_format(path: &Path) -> DataError {
    match Format::named_by(path) {
        Some((format, Some(compression))) => DataError::NotCompressible {
            path: path.to_owned(),
            extension: format.extension,
            command: compression.command(),
            compressible: compressible(),
        },
        _ => DataError::UnknownFormat {
            path: path.to_owned(),
            known: extensions(FORMATS.iter()),
            compressible: compressible(),
        },
    }
}

/// Returns the extensions of `formats`, such as ".txt or .jsonl".
fn extensions<'a>(formats: impl Iterator<Item = &'a Format>) -> String {
    list(formats.map(|format| format!(".{}", format.extension)))
}

/// Returns the extensions of the formats with records, such as ".jsonl or .parquet".
pub(super) fn with_records() -> String {
    extensions(FORMATS.iter().filter(|format| format.has_records()))
}

/// Returns the formats that may be compressed, such as ".txt or .jsonl also with .gz or .zst".
fn compressible() -> String {
    let compressions = list(Compression::ALL.map(|compression| format!(".{}", compression.extension())).into_iter());
    format!("{} also with {compressions}", extensions(FORMATS.iter().filter(|format| format.may_be_compressed)))
}

/// Returns the formats of text, such as ".txt files (one document) or .parquet files (a document in each row), .txt
/// also with .gz or .zst".
pub fn text_formats() -> String {
    let formats = FORMATS.iter().filter(|format| format.is_text());
    let formats = list(formats.map(|format| format!(".{} files ({})", format.extension, format.description)));
    format!("{formats}, {},", compressible())
}

/// Returns the meaning of the number in a document's name, such as "the line of a .jsonl file (from 1) or the row of a
/// .parquet file (from 0)".
pub fn document_numbers() -> String {
    let number =
        |format: &Format| format!("the {} of a .{} file (from {})", format.unit, format.extension, format.first_unit);
    list(FORMATS.iter().map(number))
}

/// Joins the items, as in `a, b or c`.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    match items.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} or {last}", rest.join(", ")),
        _ => items.concat(),
    }
}
