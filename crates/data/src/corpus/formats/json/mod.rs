//! The formats whose records are JSON objects with a document in one of their fields. The formats differ in how a
//! record ends.

mod array;
mod lines;
mod record;

use serde_json::{Map, Value};

use super::{FieldBytes, MESSAGE_TEXTS, ReadOptions};
use crate::config::DocumentFormat;
use crate::corpus::text_reader::TextReader;
use crate::corpus::{BadRecordReason, CorpusFile, Cursor, PieceHandler, pieces};
use crate::error::DataError;
pub(super) use array::JSON_ARRAY;
pub(super) use lines::JSON_LINES;

/// The largest size of a record in bytes. A reader holds a whole record in memory.
const MAX_RECORD_BYTES: usize = 64 << 20;

/// The number of bytes of text from which the sizes of a file's fields are estimated.
const SAMPLE_BYTES: u64 = 1 << 20;

/// Reads a file record by record.
struct Records<'a> {
    file: &'a CorpusFile,
    reader: TextReader,
    /// The position after `record`.
    position: Cursor,
    record: Vec<u8>,
    /// The position of `record` in the file's text.
    start: u64,
}

/// Reads the next record that is not blank. Returns false at the end of the file.
type NextRecord = fn(&mut Records) -> Result<bool, DataError>;

impl Records<'_> {
    fn open(file: &CorpusFile, from: Cursor) -> Result<Records<'_>, DataError> {
        Ok(Records { file, reader: file.open_text(from.offset)?, position: from, record: Vec::new(), start: 0 })
    }

    /// Returns the number of the record after the position, as messages show it.
    fn next_number(&self) -> u64 {
        self.file.format.number_of(self.position.record + 1)
    }

    /// Fails if the record is too long to be held in memory.
    fn check_length(&self) -> Result<(), DataError> {
        if self.record.len() <= MAX_RECORD_BYTES {
            return Ok(());
        }
        let location = self.file.location(self.position.record + 1);
        Err(DataError::RecordTooLong { location, limit: MAX_RECORD_BYTES })
    }
}

fn read(
    next_record: NextRecord,
    corpus_file: &CorpusFile,
    options: &ReadOptions,
    from: Cursor,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let unit = corpus_file.format.unit;
    let mut records = Records::open(corpus_file, from)?;
    while next_record(&mut records)? {
        let position = records.position;
        let bytes_read = records.reader.file_bytes(position.offset);
        let number = records.next_number() - 1;
        let bad =
            |(reason, problem)| (reason, DataError::Record { path: corpus_file.path.clone(), unit, number, problem });
        let document = match std::str::from_utf8(&records.record) {
            Ok(json) if options.documents != DocumentFormat::Text => {
                let found = record::value(json.trim(), options.documents, unit)
                    .and_then(|(value, surrogates)| Ok((pieces::conversation(&value, options.documents)?, surrogates)));
                match found {
                    Ok((conversation, lone_surrogates)) => {
                        pieces::emit_lone_surrogates(lone_surrogates, position, bytes_read, on_piece)?;
                        let bytes = records.record.len();
                        pieces::emit_conversation(corpus_file, conversation, bytes, position, bytes_read, on_piece)?;
                    }
                    Err(problem) => {
                        pieces::emit_bad_record(bad(problem), from.file, position, bytes_read, on_piece)?;
                    }
                }
                continue;
            }
            Ok(json) => record::document(json.trim(), options.text_field, unit).map_err(bad),
            Err(error) => {
                let offset = records.start + error.valid_up_to() as u64;
                Err((BadRecordReason::NotUtf8, DataError::NotUtf8 { path: corpus_file.path.clone(), offset }))
            }
        };
        match document {
            Ok(document) => {
                pieces::emit_lone_surrogates(document.lone_surrogates, position, bytes_read, on_piece)?;
                pieces::emit_record(corpus_file, &document.text, options.split, position, bytes_read, on_piece)?;
            }
            Err(bad) => pieces::emit_bad_record(bad, from.file, position, bytes_read, on_piece)?,
        }
    }
    Ok(())
}

/// Returns the fields of the first objects of a file, each with an estimate of its bytes in the whole file. The
/// estimate assumes that all objects of the file are like the first objects.
fn text_fields(next_record: NextRecord, corpus_file: &CorpusFile) -> Result<FieldBytes, DataError> {
    let problem = |what: &str| DataError::Invalid { problem: format!("{} {what}", corpus_file.path.display()) };
    let mut records = Records::open(corpus_file, Cursor::default())?;
    let mut fields = FieldBytes::default();
    let mut is_first = true;
    while records.position.offset < SAMPLE_BYTES && next_record(&mut records)? {
        match serde_json::from_slice(&records.record) {
            Ok(Value::Object(record)) => count_text(record, &mut fields),
            _ if is_first => {
                return Err(problem(&format!("has a first {} that is no JSON object", corpus_file.format.unit)));
            }
            _ => {} // training reports such a record with its number
        }
        is_first = false;
    }
    if is_first {
        return Err(problem("is empty"));
    }
    let bytes_read = records.reader.file_bytes(records.reader.offset());
    let scale = corpus_file.stamp.size as f64 / bytes_read.max(1) as f64;
    let bytes = fields.texts.values_mut().chain(fields.conversations.values_mut());
    bytes.for_each(|bytes| *bytes = (*bytes as f64 * scale) as u64);
    Ok(fields)
}

fn count_text(record: Map<String, Value>, fields: &mut FieldBytes) {
    for (name, value) in record {
        match value {
            Value::String(text) => *fields.texts.entry(name).or_default() += text.len() as u64,
            Value::Array(messages) => {
                let texts = messages.iter().flat_map(|message| MESSAGE_TEXTS.map(|field| message[field].as_str()));
                let bytes: usize = texts.flatten().map(str::len).sum();
                if bytes > 0 {
                    *fields.conversations.entry(name).or_default() += bytes as u64;
                }
            }
            _ => {}
        }
    }
}
