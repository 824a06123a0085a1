//! `.parquet`: every row is a document, in one column of text or in the columns of a conversation.

mod conversation;
mod file;

use std::collections::BTreeMap;
use std::ops::Range;

use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescPtr, Type as SchemaType};

use super::{Contents, FieldBytes, Format, MESSAGE_TEXTS, ReadOptions};
use crate::config::DocumentFormat;
use crate::corpus::{BadRecordReason, CorpusFile, Cursor, FilePart, PieceHandler, pieces};
use crate::error::DataError;
use file::ParquetFile;

pub(super) const PARQUET: Format = Format {
    extension: "parquet",
    description: "a document in each row, in a column of text",
    unit: "row",
    first_unit: 0,
    may_be_compressed: false,
    can_be_divided: true,
    hashed_name: "Parquet",
    contents: Contents::Fields(text_columns),
    read,
};

/// The number of rows per read, which bounds the memory.
const ROWS_PER_READ: usize = 256;

/// Reads the rows of a file as documents, beginning with the row of `from`.
///
/// # Errors
/// Fails if the file can't be read or is damaged, if the file has no text column with the field's name, or if
/// `on_piece` fails.
fn read(
    corpus_file: &CorpusFile,
    options: &ReadOptions,
    from: Cursor,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    if options.documents != DocumentFormat::Text {
        return conversation::read(corpus_file, options, from, on_piece);
    }
    let file = ParquetFile::new(corpus_file);
    let reader = file.call(|| SerializedFileReader::new(file.clone()))?;
    let column = TextColumn::find(reader.metadata(), corpus_file, options.text_field)?;
    let chunks = column_chunks(reader.metadata(), column.index, corpus_file)?;
    let groups = RowGroups::of(reader.metadata());
    let mut on_row = |record: u64, text: Result<&str, (BadRecordReason, DataError)>| {
        let bytes_read = groups.bytes_read(record, corpus_file);
        let position = Cursor { record, ..from };
        match text {
            Ok(text) => pieces::emit_record(corpus_file, text, options.split, position, bytes_read, on_piece),
            Err(bad) => pieces::emit_bad_record(bad, from.file, position, bytes_read, on_piece),
        }
    };
    for (index, rows) in groups.of_part(options.part, from.record) {
        let group = file.call(|| reader.get_row_group(index))?;
        file.expect_chunks(vec![chunks[index].clone()]);
        column.read_group(&file, &*group, rows, from.record, &mut on_row)?;
    }
    Ok(())
}

/// The row groups of a file.
struct RowGroups {
    /// The range of rows and the range of bytes of each group. Both ranges count from the beginning of the first group.
    groups: Vec<(Range<u64>, Range<u64>)>,
    total_rows: u64,
    total_bytes: u64,
}

impl RowGroups {
    fn of(metadata: &ParquetMetaData) -> RowGroups {
        let (mut row, mut bytes) = (0u64, 0u64);
        let groups = metadata.row_groups().iter().map(|group| {
            let (rows_before, bytes_before) = (row, bytes);
            row = row.saturating_add(group.num_rows().max(0) as u64);
            bytes = bytes.saturating_add(group.compressed_size().max(0) as u64);
            (rows_before..row, bytes_before..bytes)
        });
        let groups = groups.collect();
        RowGroups { groups, total_rows: metadata.file_metadata().num_rows().max(1) as u64, total_bytes: bytes }
    }

    /// Returns the index and the rows of each group that is in `part` and has rows from `first` on.
    fn of_part(&self, part: FilePart, first: u64) -> impl Iterator<Item = (usize, Range<u64>)> {
        let groups = self.groups.iter().enumerate();
        let wanted =
            groups.filter(move |(_, (rows, bytes))| rows.end > first && part.has(bytes.clone(), self.total_bytes));
        wanted.map(|(index, (rows, _))| (index, rows.clone()))
    }

    /// Returns the approximate number of bytes of the first `rows` rows.
    fn bytes_read(&self, rows: u64, corpus_file: &CorpusFile) -> u64 {
        (corpus_file.stamp.size as f64 * rows as f64 / self.total_rows as f64) as u64
    }
}

/// The column of a file that holds the documents.
struct TextColumn<'a> {
    corpus_file: &'a CorpusFile,
    name: &'a str,
    index: usize,
    description: ColumnDescPtr,
}

impl TextColumn<'_> {
    fn find<'a>(
        metadata: &ParquetMetaData,
        corpus_file: &'a CorpusFile,
        name: &'a str,
    ) -> Result<TextColumn<'a>, DataError> {
        let schema = metadata.file_metadata().schema_descr();
        let no_text = |what: &str| no_text(corpus_file, name, what);
        let Some((path, field)) = find_field(schema.root_schema(), name) else {
            return Err(DataError::NoColumn {
                path: corpus_file.path.clone(),
                column: name.to_owned(),
                columns: schema.columns().iter().map(|column| column.path().string()).collect(),
            });
        };
        let is_in_field = |column: &ColumnDescPtr| column.path().parts().starts_with(&path);
        let columns: Vec<usize> =
            (0..schema.num_columns()).filter(|&index| is_in_field(&schema.column(index))).collect();
        match columns[..] {
            [index, ..] if schema.column(index).max_rep_level() > 0 => Err(no_text("holds lists")),
            [index] if field.is_primitive() => {
                Ok(TextColumn { corpus_file, name, index, description: schema.column(index) })
            }
            _ => Err(no_text("holds structs")),
        }
    }

    /// Reads the rows of `group` from row `first` on. `rows` are the indices of the group's rows in the file. For each
    /// row, `on_row` receives the number of rows up to and including this row.
    fn read_group(
        &self,
        file: &ParquetFile,
        group: &dyn RowGroupReader,
        rows: Range<u64>,
        first: u64,
        on_row: &mut OnRow,
    ) -> Result<(), DataError> {
        let column = file.call(|| group.get_column_reader(self.index))?;
        let ColumnReader::ByteArrayColumnReader(mut column) = column else {
            let what = format!("is {}", self.description.physical_type());
            return Err(no_text(self.corpus_file, self.name, &what));
        };
        let (mut row, end) = (rows.start, rows.end);
        if row < first {
            file.call(|| column.skip_records((first - row) as usize))?;
            row = first;
        }
        while row < end {
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            let (count, ..) = file.call(|| column.read_records(ROWS_PER_READ, Some(&mut levels), None, &mut values))?;
            if count == 0 {
                return Err(damaged(self.corpus_file, format!("it ends at row {row} of {end}: is it cut off?")));
            }
            let mut values = values.iter();
            for index in 0..count {
                // If neither the column nor a struct around it is optional, `levels` is empty and every row has a
                // value.
                let present = levels.get(index).is_none_or(|&level| level == self.description.max_def_level());
                let value = if present { values.next() } else { None };
                let text = match value.map(ByteArray::as_utf8) {
                    Some(Ok(text)) => Ok(text),
                    Some(Err(_)) => Err((BadRecordReason::NotUtf8, self.bad_row(row, "not valid UTF-8: convert it"))),
                    None => Err((BadRecordReason::Null, self.bad_row(row, "null: write a text into it"))),
                };
                row += 1;
                on_row(row, text)?;
            }
        }
        Ok(())
    }

    fn bad_row(&self, row: u64, what: &str) -> DataError {
        let problem = format!("\"{}\" is {what}, or remove the row", self.name);
        DataError::Record { path: self.corpus_file.path.clone(), unit: PARQUET.unit, number: row, problem }
    }
}

/// Receives the text of each row, or the reason why the row has none.
type OnRow<'a> = dyn FnMut(u64, Result<&str, (BadRecordReason, DataError)>) -> Result<(), DataError> + 'a;

/// Returns the field named `path` in a group of fields, and the names that lead to the field. If no field has this
/// name, the part of `path` before the first dot names a struct, and the part after the dot names a field of the
/// struct, as in JSON.
fn find_field<'a>(group: &'a SchemaType, path: &str) -> Option<(Vec<String>, &'a SchemaType)> {
    let field = |name: &str| group.get_fields().iter().find(|field| field.name() == name);
    if let Some(field) = field(path) {
        return Some((vec![path.to_owned()], field));
    }
    let (name, rest) = path.split_once('.')?;
    let (names, found) = find_field(field(name).filter(|field| field.is_group())?, rest)?;
    Some(([vec![name.to_owned()], names].concat(), found))
}

fn no_text(corpus_file: &CorpusFile, column: &str, what: &str) -> DataError {
    damaged(corpus_file, format!("the column \"{column}\" {what}, not text: set data.textField to one that holds text"))
}

fn damaged(corpus_file: &CorpusFile, problem: String) -> DataError {
    DataError::Parquet { path: corpus_file.path.clone(), problem }
}

/// Returns the text columns that [`read`] accepts and the columns of conversations, each with an estimate of its bytes.
/// The estimate of a text column assumes that all rows are as long as the first rows. The bytes of conversations come
/// from the metadata.
///
/// # Errors
/// Fails if the file can't be read.
fn text_columns(corpus_file: &CorpusFile) -> Result<FieldBytes, DataError> {
    let file = ParquetFile::new(corpus_file);
    let reader = file.call(|| SerializedFileReader::new(file.clone()))?;
    let metadata = reader.metadata();
    let columns = metadata.file_metadata().schema_descr().columns().iter().enumerate();
    let texts = columns
        .filter(|(_, column)| column.max_rep_level() == 0 && column.physical_type() == Type::BYTE_ARRAY)
        .map(|(index, column)| {
            let chunks = column_chunks(metadata, index, corpus_file)?;
            Ok(text_bytes(&file, &reader, index, chunks)?.map(|bytes| (column.path().string(), bytes)))
        });
    let texts = texts.filter_map(Result::transpose).collect::<Result<_, DataError>>()?;
    Ok(FieldBytes { texts, conversations: conversations(metadata) })
}

/// Returns the columns of lists of structs that contain the text of a message, each with the bytes of these texts.
fn conversations(metadata: &ParquetMetaData) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for group in metadata.row_groups() {
        for chunk in group.columns() {
            let column = chunk.column_descr();
            let (parts, is_text) = (column.path().parts(), column.physical_type() == Type::BYTE_ARRAY);
            if let ([name, .., field], 1, true) = (parts, column.max_rep_level(), is_text)
                && MESSAGE_TEXTS.contains(&field.as_str())
            {
                *found.entry(name.clone()).or_default() += chunk.uncompressed_size().max(0) as u64;
            }
        }
    }
    found
}

/// Returns an estimate of the bytes of a column from its first rows, or `None` if these rows are not text but, for
/// example, images.
fn text_bytes(
    file: &ParquetFile,
    reader: &SerializedFileReader<ParquetFile>,
    index: usize,
    chunks: Vec<Range<u64>>,
) -> Result<Option<u64>, DataError> {
    let rows = reader.metadata().file_metadata().num_rows();
    let Some(first) = chunks.into_iter().next().filter(|_| rows > 0) else { return Ok(Some(0)) };
    file.expect_chunks(vec![first]);
    let group = file.call(|| reader.get_row_group(0))?;
    let ColumnReader::ByteArrayColumnReader(mut column) = file.call(|| group.get_column_reader(index))? else {
        return Ok(None);
    };
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (count, ..) = file.call(|| column.read_records(ROWS_PER_READ, Some(&mut levels), None, &mut values))?;
    let lengths = values.iter().map(|value| value.as_utf8().ok().map(str::len));
    let bytes: Option<usize> = lengths.sum();
    Ok(bytes.map(|bytes| (bytes as f64 / count.max(1) as f64 * rows as f64) as u64))
}

/// Returns the range of bytes of a column in each row group. Checks an assumption of the Parquet library: the counts
/// and offsets in the metadata fit the file.
fn column_chunks(
    metadata: &ParquetMetaData,
    column: usize,
    corpus_file: &CorpusFile,
) -> Result<Vec<Range<u64>>, DataError> {
    let file_bytes = corpus_file.stamp.size;
    let groups = metadata.row_groups().iter().enumerate();
    let chunks = groups.map(|(at, group)| {
        let chunk = group.columns().get(column);
        let chunk = chunk.ok_or_else(|| damaged(corpus_file, format!("its row group {at} lacks a column")))?;
        let first_page = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let bytes = u64::try_from(first_page).ok().zip(u64::try_from(chunk.compressed_size()).ok());
        let bytes = bytes.and_then(|(start, bytes)| Some(start..start.checked_add(bytes)?));
        bytes.filter(|bytes| group.num_rows() >= 0 && bytes.end <= file_bytes).ok_or_else(|| {
            let problem = format!(
                "its metadata puts row group {at} outside of its {file_bytes} bytes: it is damaged, write or copy it again"
            );
            damaged(corpus_file, problem)
        })
    });
    chunks.collect()
}
