//! The object of a record that holds a conversation.

use serde_json::Value;

use super::record::{Problem, not_json, replace_lone_surrogates};
use crate::config::DocumentFormat;
use crate::corpus::BadRecordReason;

/// The escape of the character that stands for a lone surrogate.
const REPLACEMENT: &str = "\\ufffd";

/// The value of a record, and the number of lone surrogates in it, each replaced by U+FFFD. `unit` is the name of a
/// record in messages, such as "line".
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
