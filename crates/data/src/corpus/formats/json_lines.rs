//! `.jsonl`: every line is a JSON object, and one of its fields holds a document.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use serde_json::{Map, Value};

use super::{Contents, Format};
use crate::corpus::pieces::Split;
use crate::corpus::text_reader::unreadable;
use crate::corpus::{CorpusFile, Cursor, PieceHandler, pieces};
use crate::error::DataError;

pub(super) const JSON_LINES: Format = Format {
    extension: "jsonl",
    description: "a JSON object in each line, with a document in a field",
    unit: "line",
    first_unit: 1,
    may_be_compressed: true,
    hashed_name: "JsonLines",
    contents: Contents::Fields(text_fields),
    read,
};

/// The largest size of a line in bytes. A whole line is held in memory.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Bytes of a `.jsonl` file after which its fields are no longer measured.
const SAMPLE_BYTES: u64 = 1 << 20;

/// The largest number of bytes that are read of a `.jsonl` file, whose first line may be long.
const MAX_READ_BYTES: u64 = 16 << 20;

/// Fields in which data sets hold conversations.
const CONVERSATIONS: [&str; 3] = ["messages", "conversations", "conversation"];

fn read(
    corpus_file: &CorpusFile,
    field: &str,
    from: Cursor,
    split: Split,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let mut reader = corpus_file.open_text(from.offset).map_err(corpus_file.read_failed())?;
    let mut position = from;
    let mut line = Vec::new();
    loop {
        line.clear();
        let start = reader.offset();
        let limited = &mut reader.by_ref().take(MAX_LINE_BYTES as u64 + 1);
        limited.read_until(b'\n', &mut line).map_err(corpus_file.read_failed())?;
        position.offset = reader.offset();
        if line.len() > MAX_LINE_BYTES {
            let location = format!("{}, line {}", corpus_file.path.display(), position.record + 1);
            return Err(DataError::TooLong { location, limit: MAX_LINE_BYTES });
        }
        if line.is_empty() {
            return Ok(());
        }
        position.record += 1;
        let json = std::str::from_utf8(&line).map_err(|error| DataError::NotUtf8 {
            path: corpus_file.path.clone(),
            offset: start + error.valid_up_to() as u64,
        })?;
        let json = json.trim();
        if !json.is_empty() {
            let line = position.record;
            let text = document(json, field).map_err(|problem| DataError::Line {
                path: corpus_file.path.clone(),
                line,
                problem,
            })?;
            let bytes_read = reader.file_bytes(position.offset);
            pieces::emit_record(corpus_file, &text, split, position, bytes_read, on_piece)?;
        }
    }
}

/// The text in the field `field` of a JSON object. If no field has that name, `field` may be a path such as `doc.text`.
fn document(json: &str, field: &str) -> Result<String, String> {
    let example = format!("{{\"{field}\": \"...\"}}");
    let value: Value = serde_json::from_str(json).map_err(|error| not_json(json, &error, &example))?;
    let Value::Object(fields) = value else {
        return Err(format!("this is JSON, but no object: every line must be one such as {example}"));
    };
    let names = || fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match find_field(&fields, field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(no_text(field, other)),
        None if fields.is_empty() => Err(format!("the object has no fields: it needs \"{field}\"")),
        None if CONVERSATIONS.iter().any(|name| fields.get(*name).is_some_and(Value::is_array)) => Err(format!(
            "there is no field \"{field}\", only {}: a conversation can't be trained on as it is; write it as one text with the \
             tokenizer's chat template, and set data.specialTokens to Parse",
            names()
        )),
        None => Err(format!(
            "there is no field \"{field}\", only {}: set data.textField to the one that holds the text",
            names()
        )),
    }
}

/// The value of the field named `path`. Without such a field, the part before the first dot names an object, and the
/// rest names a field in it.
fn find_field<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let nested = || {
        let (name, rest) = path.split_once('.')?;
        find_field(fields.get(name)?.as_object()?, rest)
    };
    fields.get(path).or_else(nested)
}

/// The reason why the value of the field can't be a document.
fn no_text(field: &str, value: &Value) -> String {
    let is_conversation = value.as_array().is_some_and(|turns| turns.first().is_some_and(Value::is_object));
    if is_conversation {
        return format!(
            "the field \"{field}\" holds a conversation, not text: write it as one text with the tokenizer's chat template, and \
             set data.specialTokens to Parse"
        );
    }
    format!(
        "the field \"{field}\" holds {}, not text: leave such lines out, as `jq -c 'select(.{field} | type == \"string\")'` does",
        json_type_name(value)
    )
}

/// The reason why a line is not JSON.
fn not_json(json: &str, error: &serde_json::Error, example: &str) -> String {
    let message = error.to_string();
    let cause = message.split(" at line ").next().unwrap_or_default(); // its line number is always 1
    match lone_surrogate(json).or_else(|| bare_number(json)) {
        Some(found) if found.starts_with('\\') => format!(
            "{found} is half of a surrogate pair, and its other half is missing: no text can hold it; write \\ufffd for it"
        ),
        Some(found) => format!("JSON has no {found}, which Python's json.dumps writes for a number: write null for it"),
        None => {
            let column = error.column();
            format!("this is not JSON ({cause} at column {column}): every line must be an object such as {example}")
        }
    }
}

/// The first `\u` escape of half a surrogate pair whose other half is missing.
fn lone_surrogate(json: &str) -> Option<&str> {
    let unit = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    while let Some(found) = json.get(at..)?.find('\\') {
        at += found;
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => return json.get(at..at + 6),
            (Some(_), _) => 6,
            (None, _) => 2,
        };
    }
    None
}

/// The first number outside of strings that JSON does not allow, such as `NaN`.
fn bare_number(json: &str) -> Option<&'static str> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, byte) in json.bytes().enumerate() {
        let starts = |name: &&str| json.as_bytes()[at..].starts_with(name.as_bytes());
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            _ => {
                if let Some(name) = ["NaN", "-Infinity", "Infinity"].into_iter().find(starts) {
                    return Some(name);
                }
            }
        }
    }
    None
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

/// The text fields in the first objects of a `.jsonl` file, each with an estimate of its bytes in the whole file. The
/// estimate takes the rest of the file to be like these objects.
fn text_fields(corpus_file: &CorpusFile) -> Result<BTreeMap<String, u64>, String> {
    let mut reader = corpus_file.open_text(0).map_err(unreadable)?;
    let (mut fields, mut line) = (BTreeMap::new(), Vec::new());
    let mut is_first = true;
    while reader.offset() < SAMPLE_BYTES {
        line.clear();
        let limited = &mut reader.by_ref().take(MAX_READ_BYTES);
        if limited.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            break;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(Value::Object(record)) => count_text(record, &mut fields),
            _ if is_first => return Err("has a first line that is no JSON object".into()),
            _ => {} // training refuses such a line and reports its number
        }
        is_first = false;
    }
    if is_first {
        return Err("is empty".into());
    }
    let scale = corpus_file.stamp.size as f64 / reader.file_bytes(reader.offset()).max(1) as f64;
    Ok(fields.into_iter().map(|(name, bytes)| (name, (bytes as f64 * scale) as u64)).collect())
}

fn count_text(record: Map<String, Value>, fields: &mut BTreeMap<String, u64>) {
    for (name, value) in record {
        if let Value::String(text) = value {
            *fields.entry(name).or_default() += text.len() as u64;
        }
    }
}
