//! `.parquet`: every row is a document, in one column of text.

use std::fs::File;

use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::pieces::Split;
use super::{CorpusFile, Cursor, PieceHandler, pieces};
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
    let unreadable = |error: ParquetError| bad(error.to_string());
    let bad_row = |row: u64, problem: String| DataError::Row { path: corpus_file.path.clone(), row, problem };

    let file = File::open(&corpus_file.path).map_err(DataError::io("read", &corpus_file.path))?;
    let reader = SerializedFileReader::new(file).map_err(unreadable)?;
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
    let total_rows = reader.metadata().file_metadata().num_rows().max(1) as u64;

    let mut row = 0; // in the file, of the next record
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(unreadable)?;
        let end = row + group.metadata().num_rows() as u64;
        if end <= from.record {
            row = end;
            continue;
        }
        let ColumnReader::ByteArrayColumnReader(mut column) = group.get_column_reader(column).map_err(unreadable)?
        else {
            let found = description.physical_type();
            return Err(bad(format!(
                "the column \"{field}\" is {found}, not text: set data.textField to one that holds text"
            )));
        };
        if row < from.record {
            column.skip_records((from.record - row) as usize).map_err(unreadable)?;
            row = from.record;
        }
        while row < end {
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            let (rows, ..) =
                column.read_records(ROWS_PER_READ, Some(&mut levels), None, &mut values).map_err(unreadable)?;
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
