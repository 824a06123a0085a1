//! Reads the document in a field of a JSON object, and the value of a record that holds a conversation.

use serde_json::{Map, Value};

use crate::config::DocumentFormat;
use crate::corpus::BadRecordReason;

/// The names of fields in which data sets store conversations.
const CONVERSATIONS: [&str; 3] = ["messages", "conversations", "conversation"];

/// The remedy for a conversation where a text is expected.
const READS_MESSAGES: &str = "set data.format to Chat, which reads the field messages";

/// The JSON escape of U+FFFD, which replaces a lone surrogate.
const REPLACEMENT: &str = "\\ufffd";

/// The text in a field of a record.
#[derive(Debug, PartialEq)]
pub(super) struct Document {
    pub(super) text: String,
    /// The number of lone surrogates in the text, each replaced by U+FFFD.
    pub(super) lone_surrogates: u64,
}

/// The reason why a record holds no document, and a sentence for the user with the problem and the remedy.
pub(super) type Problem = (BadRecordReason, String);

/// Returns the document in the field `field` of a JSON object. `unit` is the name of a record in messages, such as
/// "line". The escape of a lone surrogate becomes U+FFFD, because UTF-8 can't encode a surrogate.
pub(super) fn document(json: &str, field: &str, unit: &str) -> Result<Document, Problem> {
    let problem = match text(json, field, unit) {
        Ok(text) => return Ok(Document { text, lone_surrogates: 0 }),
        Err(problem) => problem,
    };
    let Some(replaced) = replace_lone_surrogates(json, REPLACEMENT) else { return Err(problem) };
    let text_with = text(&replaced, field, unit)?;
    // `text_with` is longer than `without` by one character for each lone surrogate in this field
    let without = replace_lone_surrogates(json, "").and_then(|json| text(&json, field, unit).ok()).unwrap_or_default();
    let lone_surrogates = text_with.chars().count().saturating_sub(without.chars().count()) as u64;
    Ok(Document { text: text_with, lone_surrogates })
}

/// Returns the value of a record with each lone surrogate replaced by U+FFFD, and the number of these surrogates.
/// `unit` is the name of a record in messages, such as "line".
///
/// # Errors
/// Fails if the record is not JSON.
pub(super) fn value(json: &str, documents: DocumentFormat, unit: &str) -> Result<(Value, u64), Problem> {
    let error = match serde_json::from_str(json) {
        Ok(value) => return Ok((value, 0)),
        Err(error) => error,
    };
    let replaced = replace_lone_surrogates(json, REPLACEMENT);
    let value = replaced.as_ref().and_then(|replaced| serde_json::from_str(replaced).ok());
    if let (Some(value), Some(replaced)) = (value, replaced) {
        let without = replace_lone_surrogates(json, "").map_or(0, |without| without.len());
        return Ok((value, (replaced.len().saturating_sub(without) / REPLACEMENT.len()) as u64));
    }
    let example = match documents {
        DocumentFormat::Text => "{}",
        DocumentFormat::PromptCompletion => r#"{"prompt": "...", "completion": "..."}"#,
        DocumentFormat::Chat => r#"{"messages": [{"role": "user", "content": "..."}, ...]}"#,
    };
    Err((BadRecordReason::NotJson, not_json(json, &error, example, unit)))
}

/// Returns the text in the field `field` of a JSON object. If no field has that name, `field` may be a path such as
/// `doc.text`.
fn text(json: &str, field: &str, unit: &str) -> Result<String, Problem> {
    let example = format!("{{\"{field}\": \"...\"}}");
    let value: Value = serde_json::from_str(json)
        .map_err(|error| (BadRecordReason::NotJson, not_json(json, &error, &example, unit)))?;
    let Value::Object(fields) = value else {
        let problem = format!("this is JSON but not an object: every {unit} must be an object such as {example}");
        return Err((BadRecordReason::NoField, problem));
    };
    let names = || fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let problem = match find_field(&fields, field) {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Null) => return Err((BadRecordReason::Null, no_text(field, &Value::Null, unit))),
        Some(other) => return Err((BadRecordReason::NotText, no_text(field, other, unit))),
        None if fields.is_empty() => format!("the object has no fields: it needs \"{field}\""),
        None if CONVERSATIONS.iter().any(|name| fields.get(*name).is_some_and(Value::is_array)) => {
            format!("there is no field \"{field}\", only {}: to train on a conversation, {READS_MESSAGES}", names())
        }
        None => {
            format!(
                "there is no field \"{field}\", only {}: set data.textField to the one that holds the text",
                names()
            )
        }
    };
    Err((BadRecordReason::NoField, problem))
}

/// Returns the value of the field named `path`. If no field has this name, the part of `path` before the first dot
/// names an object, and the part after the dot names a field of the object. Every field of a null object is null, as in
/// Parquet.
fn find_field<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let nested = || {
        let (name, rest) = path.split_once('.')?;
        match fields.get(name)? {
            Value::Object(object) => find_field(object, rest),
            null @ Value::Null => Some(null),
            _ => None,
        }
    };
    fields.get(path).or_else(nested)
}

/// Returns the message for a field whose value can't be a document.
fn no_text(field: &str, value: &Value, unit: &str) -> String {
    let is_conversation = value.as_array().is_some_and(|turns| turns.first().is_some_and(Value::is_object));
    if is_conversation {
        return format!("the field \"{field}\" holds a conversation, not text: to train on it, {READS_MESSAGES}");
    }
    let select = format!("select(.{field} | type == \"string\")");
    let command = if unit == "line" { format!("jq -c '{select}'") } else { format!("jq 'map({select})'") };
    format!("the field \"{field}\" holds {}, not text: leave such {unit}s out, as `{command}` does", type_name(value))
}

/// Returns the message for a record that is not JSON.
fn not_json(json: &str, error: &serde_json::Error, example: &str, unit: &str) -> String {
    if let Some(number) = bare_number(json) {
        return format!("JSON has no {number}, which Python's json.dumps writes for a number: write null for it");
    }
    let message = error.to_string();
    let cause = message.split(" at line ").next().unwrap_or_default();
    // in a record of one line, such as a record of a `.jsonl` file, the number of the line is left out
    let line = if error.line() > 1 { format!("line {}, ", error.line()) } else { String::new() };
    let place = format!("{line}column {}", error.column());
    format!("this is not JSON ({cause} at {place}): every {unit} must be an object such as {example}")
}

/// Returns `json` with `replacement` for each `\u` escape of a lone surrogate, or `None` if `json` has no such escape.
fn replace_lone_surrogates(json: &str, replacement: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut replaced, mut copied, mut at) = (String::new(), 0, 0);
    // valid JSON has backslashes only in strings, where each begins an escape
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                replaced += &json[copied..at];
                replaced += replacement;
                copied = at + 6;
                6
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
    }
    (copied > 0).then(|| replaced + &json[copied..])
}

/// Returns the first number that JSON does not allow, such as `NaN`, outside of strings.
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

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> (String, u64) {
        let document = document(json, "text", "line").unwrap();
        (document.text, document.lone_surrogates)
    }

    #[test]
    fn half_a_surrogate_pair_is_read_as_a_replacement_character() {
        assert_eq!(read(r#"{"text": "\ud83d\ude00 é"}"#), ("😀 é".into(), 0));
        assert_eq!(read(r#"{"text": "a \ud83d"}"#), ("a \u{fffd}".into(), 1));
        assert_eq!(
            read(r#"{"text": "\uDE00\ud83d \ud83d\ud83d\ude00 \ufffd"}"#),
            ("\u{fffd}\u{fffd} \u{fffd}😀 \u{fffd}".into(), 3)
        );
        // an escaped backslash begins no escape
        assert_eq!(read(r#"{"text": "\\ud83d"}"#), (r"\ud83d".into(), 0));
        assert_eq!(read(r#"{"text": "\\ud83d \\\ud83d"}"#), ("\\ud83d \\\u{fffd}".into(), 1));
        // lone surrogates outside of the text do not count
        assert_eq!(read(r#"{"\ud83d": "\ud83d", "text": "b \ufffd"}"#), ("b \u{fffd}".into(), 0));
        for invalid in [r#"{"text": "\ud83""#, r#"{"text": "\ud83d" \ud83d}"#, r#"{"text": "\ud83d"#, "\\", "\\é"] {
            assert_eq!(document(invalid, "text", "line").unwrap_err().0, BadRecordReason::NotJson, "{invalid}");
        }
        assert_eq!(document(r#"{"a": "\ud83d", "text": null}"#, "text", "line").unwrap_err().0, BadRecordReason::Null);
    }

    #[test]
    fn a_field_is_found_by_its_name_and_then_by_its_path() {
        let found = |json: &str, path: &str| {
            let fields: Map<String, Value> = serde_json::from_str(json).unwrap();
            find_field(&fields, path).cloned()
        };
        assert_eq!(found(r#"{"a": {"b": 1}, "a.b": 2}"#, "a.b"), Some(2.into()));
        assert_eq!(found(r#"{"a": {"b.c": 1, "b": {"c": 2}}}"#, "a.b.c"), Some(1.into()));
        assert_eq!(found(r#"{"a": {"b": {"c": 2}}}"#, "a.b.c"), Some(2.into()));
        assert_eq!(found(r#"{"a": null}"#, "a.b.c"), Some(Value::Null));
        assert_eq!(found(r#"{"a": [{"b": 1}]}"#, "a.b"), None);
    }
}
