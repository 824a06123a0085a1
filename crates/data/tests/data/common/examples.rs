//! An example of every format, for the tests that iterate over the formats.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)] // each crate that includes this file uses a part of it

use std::io::Write;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;

/// An example of a format.
pub struct Example {
    extension: &'static str,
    /// The name of the format in the hash of a corpus. Checkpoints contain this hash, so the name never changes.
    pub hashed_name: &'static str,
    /// Returns the contents of files with the given texts as their documents, in the field `text` if the format has
    /// fields.
    pub files: fn(&[&str]) -> Vec<Vec<u8>>,
}

const EXAMPLES: [Example; 6] = [
    Example {
        extension: "txt",
        hashed_name: "Text",
        files: |texts| texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
    },
    Example {
        extension: "jsonl",
        hashed_name: "JsonLines",
        files: |texts| {
            let lines = texts.iter().map(|text| format!("{}\n", serde_json::json!({ "text": text })));
            vec![lines.collect::<String>().into_bytes()]
        },
    },
    Example {
        extension: "json",
        hashed_name: "JsonArray",
        files: |texts| {
            let elements: Vec<_> =
                texts.iter().map(|text| serde_json::json!({ "text": text, "tags": ["]", {}] })).collect();
            vec![serde_json::to_vec_pretty(&elements).unwrap()]
        },
    },
    Example {
        extension: "parquet",
        hashed_name: "Parquet",
        files: |texts| vec![parquet("text", &texts.iter().map(|text| Some(*text)).collect::<Vec<_>>())],
    },
    Example { extension: "tokens", hashed_name: "Ids32", files: |texts| vec![little_endian(&letter_ids(texts), 4)] },
    Example { extension: "u16", hashed_name: "Ids16", files: |texts| vec![little_endian(&letter_ids(texts), 2)] },
];

/// Returns the example of the format with the extension `extension`.
pub fn example(extension: &str) -> &'static Example {
    let found = EXAMPLES.iter().find(|example| example.extension == extension);
    found.unwrap_or_else(|| panic!("there is no example of .{extension}"))
}

/// Returns `ids` as little-endian integers of `width` bytes each.
pub fn little_endian(ids: &[u32], width: usize) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()[..width].to_vec()).collect()
}

/// Returns a compressed file with one gzip member (if `extension` is `gz`) or Zstandard frame per text in `streams`.
pub fn compressed(streams: &[&[u8]], extension: &str) -> Vec<u8> {
    let stream = |text: &&[u8]| match extension {
        "gz" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
        _ => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 0).unwrap();
            encoder.include_checksum(true).unwrap();
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
    };
    streams.iter().flat_map(stream).collect()
}

/// Returns a Parquet file with a column of text and a column of numbers, and with two rows per row group. A text of
/// `None` is null.
pub fn parquet(column: &str, texts: &[Option<&str>]) -> Vec<u8> {
    let schema = format!("message rows {{ required int64 number; optional binary {column} (utf8); }}");
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).unwrap();
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
    writer.into_inner().unwrap()
}

/// Returns a Parquet file with columns of text. A value is a text and its definition level. A value is null if its
/// level is below the highest definition level of the column.
pub fn parquet_columns(schema: &str, columns: &[&[(&str, i16)]]) -> Vec<u8> {
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    for rows_of_column in columns {
        let mut column = rows.next_column().unwrap().unwrap();
        let writer = column.typed::<ByteArrayType>();
        let highest = writer.get_descriptor().max_def_level();
        let present = rows_of_column.iter().filter(|(_, level)| *level == highest);
        let values: Vec<ByteArray> = present.map(|(text, _)| (*text).into()).collect();
        let levels: Vec<i16> = rows_of_column.iter().map(|(_, level)| *level).collect();
        writer.write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
    }
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

/// Returns the ids of the texts' letters, 4 for `a`, and an end of text (1) after each text.
fn letter_ids(texts: &[&str]) -> Vec<u32> {
    let id = |byte: u8| match byte {
        b'\n' => Some(1),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 4),
        _ => None,
    };
    texts.iter().flat_map(|text| text.bytes().filter(|byte| *byte != b'\n').chain([b'\n'])).filter_map(id).collect()
}
