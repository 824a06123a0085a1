//! Writes Parquet files for the tests.
#![allow(clippy::unwrap_used, unreachable_pub)] // the unit tests use it too

use std::fs;
use std::path::Path;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;

/// Writes a column of text and a column of numbers, with two rows per row group. A text of `None` is null.
pub fn parquet(path: &Path, column: &str, texts: &[Option<&str>]) {
    let schema = format!("message rows {{ required int64 number; optional binary {column} (utf8); }}");
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut writer =
        SerializedFileWriter::new(fs::File::create(path).unwrap(), schema.into(), Default::default()).unwrap();
    for group in texts.chunks(2) {
        let mut rows = writer.next_row_group().unwrap();
        let mut numbers = rows.next_column().unwrap().unwrap();
        numbers.typed::<Int64Type>().write_batch(&vec![7; group.len()], None, None).unwrap();
        numbers.close().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = group.iter().flatten().map(|&text| text.into()).collect();
        let levels: Vec<i16> = group.iter().map(|text| text.is_some().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    writer.close().unwrap();
}
