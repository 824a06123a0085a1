//! Reads the rows of a Parquet file as conversations. Columns of lists and structs become JSON.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{ConvertedType, Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::serialized_reader::ReadOptionsBuilder;
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescriptor, Type as SchemaType};
use serde_json::{Map, Number, Value, json};

use super::file::ParquetFile;
use super::{PARQUET, RowGroups, column_chunks, damaged};
use crate::config::DocumentFormat;
use crate::corpus::formats::ReadOptions;
use crate::corpus::{BadRecordReason, CorpusFile, Cursor, PieceHandler, pieces};
use crate::error::DataError;

/// The largest number of characters of an error that a message shows.
const MAX_QUOTED: usize = 200;

/// The range of bytes of a column in each row group.
type ColumnChunks = Vec<Range<u64>>;

/// Reads the rows of a file as conversations, beginning with the row of `from`.
///
/// # Errors
/// Fails if the file can't be read or is damaged, if it lacks a column of conversations, or if `on_piece` fails.
pub(super) fn read(
    corpus_file: &CorpusFile,
    options: &ReadOptions,
    from: Cursor,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let file = ParquetFile::new(corpus_file);
    let reader = file.call(|| open(&file))?;
    let (columns, chunks) = columns(reader.metadata(), corpus_file, options.documents)?;
    let groups = RowGroups::of(reader.metadata());
    for (index, rows) in groups.of_part(options.part, from.record) {
        let group = file.call(|| reader.get_row_group(index))?;
        file.expect_chunks(chunks.iter().filter_map(|of_groups| of_groups.get(index).cloned()).collect());
        let mut iterator = file.call(|| group.get_row_iter(Some(columns.clone())))?;
        for record in rows {
            let cut_off = || damaged(corpus_file, format!("it ends at row {record}: is it cut off?"));
            let row = file.call(|| iterator.next().transpose()).map_err(|error| in_row(error, record))?;
            let row = row.ok_or_else(cut_off)?;
            if record < from.record {
                continue;
            }
            let position = Cursor { record: record + 1, ..from };
            let bytes_read = groups.bytes_read(record + 1, corpus_file);
            let value = object(&row);
            let bytes = value.as_ref().map_or(0, |value| value.to_string().len());
            let conversation = match &value {
                Some(value) => pieces::conversation(value, options.documents),
                None => Err((BadRecordReason::NotUtf8, "has a text that is not valid UTF-8".to_owned())),
            };
            match conversation {
                Ok(conversation) => {
                    pieces::emit_conversation(corpus_file, conversation, bytes, position, bytes_read, on_piece)?;
                }
                Err((reason, problem)) => {
                    let (path, unit) = (corpus_file.path.clone(), PARQUET.unit);
                    let error = DataError::Record { path, unit, number: record, problem };
                    pieces::emit_bad_record((reason, error), from.file, position, bytes_read, on_piece)?;
                }
            }
        }
    }
    Ok(())
}

/// Opens a file so that the library reads texts as bytes. Otherwise, the library's iterator would fail at a text that
/// is not UTF-8, and the whole file would be refused instead of one row.
fn open(file: &ParquetFile) -> Result<SerializedFileReader<ParquetFile>, ParquetError> {
    let declared = SerializedFileReader::new(file.clone())?;
    let schema = texts_as_bytes(declared.metadata().file_metadata().schema_descr().root_schema())?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
    let options = ReadOptionsBuilder::new().with_parquet_schema(schema).build();
    SerializedFileReader::new_with_options(file.clone(), options)
}

/// Returns the schema with bytes instead of texts.
fn texts_as_bytes(field: &SchemaType) -> Result<SchemaType, ParquetError> {
    let info = field.get_basic_info();
    let is_text = matches!(info.converted_type(), ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON);
    if field.is_primitive() {
        return match is_text && field.get_physical_type() == Type::BYTE_ARRAY {
            true => SchemaType::primitive_type_builder(field.name(), Type::BYTE_ARRAY)
                .with_repetition(info.repetition())
                .build(),
            false => Ok(field.clone()),
        };
    }
    let fields = field.get_fields().iter().map(|field| texts_as_bytes(field).map(Arc::new));
    let mut group = SchemaType::group_type_builder(field.name())
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_fields(fields.collect::<Result<_, _>>()?);
    if info.has_repetition() {
        group = group.with_repetition(info.repetition());
    }
    group.build()
}

/// Returns the schema of the columns that hold conversations, and the chunks of each column. The function checks that
/// the chunks lie within the file.
fn columns(
    metadata: &ParquetMetaData,
    corpus_file: &CorpusFile,
    documents: DocumentFormat,
) -> Result<(SchemaType, Vec<ColumnChunks>), DataError> {
    let schema = metadata.file_metadata().schema_descr();
    let fields = schema.root_schema().get_fields();
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    let required = documents.fields().iter().filter(|name| !DocumentFormat::OPTIONAL.contains(name));
    if let Some(&column) = required.into_iter().find(|name| !has(name)) {
        return Err(DataError::NoConversationColumn {
            path: corpus_file.path.clone(),
            column,
            format: documents.name(),
            columns: fields.iter().map(|field| field.name().to_owned()).collect(),
        });
    }
    let is_read = |name: &str| documents.fields().contains(&name);
    let read_columns = schema.columns().iter().enumerate().filter(|(_, column)| {
        let parts = column.path().parts();
        parts.first().is_some_and(|name| is_read(name))
    });
    let chunks =
        read_columns.map(|(index, _)| column_chunks(metadata, index, corpus_file)).collect::<Result<_, _>>()?;
    let fields = fields.iter().filter(|field| is_read(field.name())).cloned().collect();
    let columns = SchemaType::group_type_builder(schema.root_schema().name()).with_fields(fields).build();
    Ok((columns.map_err(|error| damaged(corpus_file, error.to_string()))?, chunks))
}

/// Adds the number of the row to the library's error, and shortens the error, because it may quote the whole row.
fn in_row(error: DataError, row: u64) -> DataError {
    match error {
        DataError::Parquet { path, problem } => {
            let problem: String = problem.chars().take(MAX_QUOTED).collect();
            DataError::Parquet { path, problem: format!("row {row}: {problem}") }
        }
        other => other,
    }
}

/// Returns the row as an object, or `None` if a text is not UTF-8.
fn object(row: &Row) -> Option<Value> {
    let columns = row.get_column_iter().map(|(name, field)| Some((name.clone(), value(field)?)));
    Some(Value::Object(columns.collect::<Option<_>>()?))
}

/// Returns the field as JSON, or `None` if it is a text that is not UTF-8.
fn value(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => json!(value),
        Field::Byte(value) => json!(value),
        Field::Short(value) => json!(value),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => json!(value),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => json!(value),
        Field::UByte(value) => json!(value),
        Field::UShort(value) => json!(value),
        Field::UInt(value) => json!(value),
        Field::ULong(value) => json!(value),
        Field::Float16(value) => number(f64::from(value.to_f32())),
        // the shortest decimal that reads back as the 32-bit value, not the digits of the value converted to 64 bits
        Field::Float(value) => value.to_string().parse().map_or(Value::Null, number),
        Field::Double(value) => number(*value),
        Field::Str(text) => json!(text),
        // bytes are read as text, even if the file's schema does not declare them as text
        Field::Bytes(bytes) => json!(bytes.as_utf8().ok()?),
        Field::Group(row) => object(row)?,
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(value).collect::<Option<_>>()?),
        Field::MapInternal(map) => {
            let entry = |(key, entry): &(Field, Field)| Some((key_of(key)?, value(entry)?));
            Value::Object(map.entries().iter().map(entry).collect::<Option<Map<String, Value>>>()?)
        }
        other => json!(other.to_string()),
    })
}

fn key_of(field: &Field) -> Option<String> {
    Some(match field {
        Field::Str(text) => text.clone(),
        Field::Bytes(bytes) => bytes.as_utf8().ok()?.to_owned(),
        other => other.to_string(),
    })
}

fn number(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}
