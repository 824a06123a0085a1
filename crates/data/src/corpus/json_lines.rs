//! `.jsonl`: every line is a JSON object, and one of its fields holds a document.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use serde_json::Value;

use super::pieces::Split;
use super::{CorpusFile, Cursor, PieceHandler, pieces};
use crate::error::DataError;

/// Some editors write it at the start of a file; JSON forbids it and lets readers skip it (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The most bytes of a line, which is held in memory.
const MAX_LINE_BYTES: usize = 64 << 20;

pub(super) fn read(
    corpus_file: &CorpusFile,
    field: &str,
    from: Cursor,
    split: Split,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let failed = || DataError::io("read", &corpus_file.path);
    let mut file = BufReader::new(File::open(&corpus_file.path).map_err(failed())?);
    file.seek(SeekFrom::Start(from.offset)).map_err(failed())?;
    let mut position = from;
    let mut line = Vec::new();
    loop {
        line.clear();
        let start = position.offset;
        position.offset +=
            file.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line).map_err(failed())? as u64;
        if line.len() > MAX_LINE_BYTES {
            let location = format!("{}, line {}", corpus_file.path.display(), position.record + 1);
            return Err(DataError::TooLong { location, limit: MAX_LINE_BYTES });
        }
        if line.is_empty() {
            return Ok(());
        }
        position.record += 1;
        let mark = if start == 0 && line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let json = std::str::from_utf8(&line[mark..]).map_err(|error| DataError::NotUtf8 {
            path: corpus_file.path.clone(),
            offset: start + (mark + error.valid_up_to()) as u64,
        })?;
        let json = json.trim();
        if !json.is_empty() {
            let line = position.record;
            let text = document(json, field).map_err(|problem| DataError::Line {
                path: corpus_file.path.clone(),
                line,
                problem,
            })?;
            pieces::emit_record(corpus_file, &text, split, position, position.offset, on_piece)?;
        }
    }
}

fn document(json: &str, field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| {
        let (message, column) = (error.to_string(), error.column());
        let cause = message.split(" at line ").next().unwrap_or_default(); // its line number is always 1
        format!("this is not JSON ({cause} at column {column}): every line must be an object such as {{\"{field}\": \"...\"}}")
    })?;
    let Value::Object(mut fields) = value else {
        return Err(format!("this is JSON, but no object: every line must be one such as {{\"{field}\": \"...\"}}"));
    };
    match fields.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!(
            "the field \"{field}\" holds {}, not text: put it right or remove the line",
            json_type_name(&other)
        )),
        None if fields.is_empty() => Err(format!("the object has no fields: it needs \"{field}\"")),
        None => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            Err(format!(
                "there is no field \"{field}\", only {}: set data.textField to the one that holds the text",
                names.join(", ")
            ))
        }
    }
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
