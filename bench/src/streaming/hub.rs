//! A data set on a fake Hugging Face hub. The data set is as large as FineWeb's `sample-10BT`, but needs little memory
//! because the row groups of its Parquet files repeat.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use stagecoach_test_hub::{File, Hub};
use stagecoach_tests::corpus::Draws;

/// The number of files of the data set, and the smallest size of a file in bytes.
const FILES: usize = 14;
const FILE_BYTES: u64 = 2_000_000_000;

/// The number of different row groups, the number of rows of a group, and the number of characters of a row.
const GROUPS: usize = 16;
const ROWS: usize = 1000;
const CHARACTERS: usize = 3000;

/// Returns the documents of a row group, cut from `texts`.
fn documents(texts: &str, draws: &mut Draws) -> Vec<ByteArray> {
    let text: Vec<char> = texts.chars().collect();
    let document = |_| {
        let start = draws.below((text.len() - CHARACTERS) as u64) as usize;
        ByteArray::from(text[start..start + CHARACTERS].iter().collect::<String>().into_bytes())
    };
    (0..ROWS).map(document).collect()
}

/// Returns a Parquet file that has each of the different row groups once.
fn cycle(texts: &str) -> Vec<u8> {
    let schema = parse_message_type("message documents { required binary text (UTF8); }").unwrap();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).unwrap()))
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    let mut draws = Draws(28);
    for _ in 0..GROUPS {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&documents(texts, &mut draws), None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Returns the metadata of a row group's copy. The copy begins `shift` bytes after the original.
fn shifted(group: &RowGroupMetaData, shift: i64) -> RowGroupMetaData {
    let column = |column: &ColumnChunkMetaData| {
        let offset = column.data_page_offset() + shift;
        column.clone().into_builder().set_data_page_offset(offset).build().unwrap()
    };
    let columns = group.columns().iter().map(column).collect();
    group.clone().into_builder().set_column_metadata(columns).set_file_offset(shift).build().unwrap()
}

/// Returns a file that repeats the groups of a Parquet file until it is large enough, and the file's size.
fn repeated(bytes: &[u8]) -> (File, u64) {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(bytes)).unwrap();
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
    let body = bytes[4..bytes.len() - 8 - footer].to_vec();
    let times = FILE_BYTES.div_ceil(body.len() as u64);
    let shift = |time: u64| (time * body.len() as u64) as i64;
    let shifted_row_groups = |time| metadata.row_groups().iter().map(move |group| shifted(group, shift(time)));
    let groups: Vec<RowGroupMetaData> = (0..times).flat_map(shifted_row_groups).collect();
    let file = metadata.file_metadata();
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let file = FileMetaData::new(file.version(), rows, None, None, file.schema_descr_ptr(), None);
    let mut end = Vec::new();
    ParquetMetaDataWriter::new(&mut end, &ParquetMetaData::new(file, groups)).finish().unwrap();
    let body_end = 4 + times * body.len() as u64;
    let size = body_end + end.len() as u64;
    // the digest may be wrong, because a job that reads only ranges of the file does not verify it
    let file = File::generated(size, &"0".repeat(64), move |offset, mut buffer| {
        let mut at = offset;
        while !buffer.is_empty() {
            let rest = match at {
                0..4 => &b"PAR1"[at as usize..],
                _ if at < body_end => &body[((at - 4) % body.len() as u64) as usize..],
                _ => &end[(at - body_end) as usize..],
            };
            let (filled, unfilled) = buffer.split_at_mut(rest.len().min(buffer.len()));
            filled.copy_from_slice(&rest[..filled.len()]);
            at += filled.len() as u64;
            buffer = unfilled;
        }
    });
    (file, size)
}

/// Starts a hub with the data set `repo`, which is made of the texts in the folder `texts`. Also returns the size of
/// the data set in bytes.
pub(super) fn start(texts: &Path, repo: &str) -> (Hub, u64) {
    let mut all = String::new();
    for file in std::fs::read_dir(texts).unwrap() {
        all += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    let (file, size) = repeated(&cycle(&all));
    let names: Vec<String> = (0..FILES).map(|index| format!("sample/10BT/{index:03}.parquet")).collect();
    let hub = Hub::start();
    hub.put(&format!("datasets/{repo}"), "main", names.iter().map(|name| (name.as_str(), file.clone())));
    (hub, FILES as u64 * size)
}
