//! Files of prompts.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Map, Value};

/// A line of a file of prompts.
pub(super) enum Prompt {
    /// `{"prompt": "..."}`
    Text(String),
    /// `{"messages": [...]}`
    Messages(Vec<Value>),
}

/// The prompts in a JSON Lines file; `-` is the standard input. Empty lines are left out.
///
/// # Errors
/// If the file can't be read, or a line is no prompt. Messages need `chat`.
pub(super) fn read_prompts(path: &Path, chat: bool) -> anyhow::Result<Vec<Prompt>> {
    let expected = match chat {
        true => r#"{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}"#,
        false => r#"{"prompt": "..."}"#,
    };
    let name = path.display();
    let input: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(path).with_context(|| format!("can't read {name}"))?)),
    };
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.with_context(|| format!("can't read {name}, line {number}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let prompt = serde_json::from_str(&line).ok().and_then(|record| prompt(record, chat));
        prompts.push(prompt.with_context(|| format!("{name}, line {number} is no prompt: expected {expected}"))?);
    }
    ensure!(!prompts.is_empty(), "{name} has no prompt: expected a line {expected} for each");
    Ok(prompts)
}

/// The prompt in a record, which has no other field.
fn prompt(record: Map<String, Value>, chat: bool) -> Option<Prompt> {
    let [(name, value)]: [(String, Value); 1] = record.into_iter().collect::<Vec<_>>().try_into().ok()?;
    match (name.as_str(), value) {
        ("prompt", Value::String(text)) => Some(Prompt::Text(text)),
        ("messages", Value::Array(messages)) if chat => Some(Prompt::Messages(messages)),
        _ => None,
    }
}
