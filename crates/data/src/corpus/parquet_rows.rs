//! `.parquet`: every row is a document, in one column of text.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::pieces::Split;
use super::{CorpusFile, Cursor, PieceHandler, pieces};
use crate::contained::contained;
use crate::error::DataError;

/// Rows read at a time: bounds the memory.
const ROWS_PER_READ: usize = 256;

pub(super) fn read(
    corpus_file: &CorpusFile,
    field: &str,
    from: Cursor,
    split: Split,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let bad = |problem: String| DataError::Parquet { path: corpus_file.path.clone(), problem };
    let bad_row = |row: u64, problem: String| DataError::Row { path: corpus_file.path.clone(), row, problem };

    let file = File::open(&corpus_file.path).map_err(DataError::io("read", &corpus_file.path))?;
    let reader = library(|| SerializedFileReader::new(file)).map_err(bad)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let column = columns.iter().position(|name| name == field).ok_or_else(|| DataError::NoColumn {
        path: corpus_file.path.clone(),
        column: field.to_owned(),
        columns: columns.clone(),
    })?;
    let description = schema.column(column);
    if description.max_rep_level() > 0 {
        return Err(bad(format!(
            "the column \"{field}\" holds lists, not text: set data.textField to one that holds text"
        )));
    }
    check_row_groups(reader.metadata(), column, corpus_file.size).map_err(bad)?;
    let total_rows = reader.metadata().file_metadata().num_rows().max(1) as u64;

    let mut row = 0u64; // in the file, of the next record
    for group in 0..reader.num_row_groups() {
        let group = library(|| reader.get_row_group(group)).map_err(bad)?;
        let end = row.saturating_add(group.metadata().num_rows() as u64);
        if end <= from.record {
            row = end;
            continue;
        }
        let column = library(|| group.get_column_reader(column)).map_err(bad)?;
        let ColumnReader::ByteArrayColumnReader(mut column) = column else {
            let found = description.physical_type();
            return Err(bad(format!(
                "the column \"{field}\" is {found}, not text: set data.textField to one that holds text"
            )));
        };
        if row < from.record {
            library(|| column.skip_records((from.record - row) as usize)).map_err(bad)?;
            row = from.record;
        }
        while row < end {
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            let (rows, ..) =
                library(|| column.read_records(ROWS_PER_READ, Some(&mut levels), None, &mut values)).map_err(bad)?;
            if rows == 0 {
                return Err(bad(format!("it ends at row {row} of {end}: is it cut off?")));
            }
            let mut values = values.iter();
            for index in 0..rows {
                // Without optional fields there are no levels, and every row has a value.
                let present = levels.get(index).is_none_or(|&level| level == description.max_def_level());
                let value = if present { values.next() } else { None };
                let value = value
                    .ok_or_else(|| bad_row(row, format!("\"{field}\" is null: put it right or remove the row")))?;
                let text = value.as_utf8().map_err(|_| {
                    bad_row(row, format!("\"{field}\" is not valid UTF-8: convert it or remove the row"))
                })?;
                row += 1;
                let bytes_read = (corpus_file.size as f64 * row as f64 / total_rows as f64) as u64;
                pieces::emit_record(corpus_file, text, split, Cursor { record: row, ..from }, bytes_read, on_piece)?;
            }
        }
    }
    Ok(())
}

/// What a call of the library returns, which panics at some damaged files.
/// The columns that may hold text, as [`read`] takes them; or why the file can't be read.
pub(crate) fn text_columns(path: &Path) -> Result<BTreeSet<String>, String> {
    let file = File::open(path).map_err(|error| format!("can't be read: {error}"))?;
    let reader = library(|| SerializedFileReader::new(file)).map_err(|e| format!("can't be read as Parquet: {e}"))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns = schema.columns().iter();
    let texts = columns.filter(|column| column.max_rep_level() == 0 && column.physical_type() == Type::BYTE_ARRAY);
    Ok(texts.map(|column| column.path().string()).collect())
}

fn library<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    let damaged = || Err(ParquetError::General("it is damaged, write or copy it again".to_owned()));
    contained(call).unwrap_or_else(damaged).map_err(|error| error.to_string())
}

/// Checks what the library takes for granted: that counts and places in the file's metadata can be true of it.
fn check_row_groups(metadata: &ParquetMetaData, column: usize, file_bytes: u64) -> Result<(), String> {
    for (at, group) in metadata.row_groups().iter().enumerate() {
        let chunk = group.columns().get(column).ok_or_else(|| format!("its row group {at} lacks a column"))?;
        let first_page = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let end = u64::try_from(first_page).ok().zip(u64::try_from(chunk.compressed_size()).ok());
        let end = end.and_then(|(start, bytes)| start.checked_add(bytes));
        if group.num_rows() < 0 || end.is_none_or(|end| end > file_bytes) {
            return Err(format!(
                "its metadata puts row group {at} outside of its {file_bytes} bytes: it is damaged, write or copy it again"
            ));
        }
    }
    Ok(())
}
