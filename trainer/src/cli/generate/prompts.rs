//! Reads the prompts of `--prompts` from a JSON Lines file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use serde_json::Value;

/// A prompt, in one of the forms that a line of the file may have.
pub(super) enum Prompt {
    /// `{"prompt": "..."}`
    Text(String),
    /// `{"messages": [...]}`
    Messages(Vec<Value>),
}

/// Reads the prompts in a JSON Lines file. The path `-` denotes the standard input. Skips empty lines.
///
/// # Errors
/// If the file can't be read, or a line is not a prompt. A line with messages is a prompt only with `chat`.
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
        let prompt = prompt(&line, chat)
            .map_err(|problem| anyhow!("{name}, line {number} is no prompt: {problem}: expected {expected}"))?;
        prompts.push(prompt);
    }
    ensure!(!prompts.is_empty(), "{name} has no prompt: expected one line for each prompt, such as {expected}");
    Ok(prompts)
}

/// Parses the prompt in a line. The line is a JSON object whose only field is the prompt.
///
/// # Errors
/// Returns a description of the problem, without the file's name and the line number.
fn prompt(line: &str, chat: bool) -> Result<Prompt, String> {
    let record: Value = serde_json::from_str(line).map_err(|error| format!("this is not JSON ({error})"))?;
    let Value::Object(mut record) = record else { return Err("this is not an object".to_owned()) };
    let prompt = match (record.remove("prompt"), record.remove("messages")) {
        (Some(Value::String(text)), None) => Prompt::Text(text),
        (None, Some(Value::Array(messages))) if chat => Prompt::Messages(messages),
        (None, Some(_)) if !chat => return Err("messages need --chat".to_owned()),
        (Some(_), Some(_)) => return Err("it has both prompt and messages".to_owned()),
        (Some(_), None) => return Err("prompt is no text".to_owned()),
        (None, Some(_)) => return Err("messages is no list".to_owned()),
        (None, None) => return Err("it has neither prompt nor messages".to_owned()),
    };
    match record.keys().next() {
        Some(other) => Err(format!("it has the unexpected field {other}: remove it")),
        None => Ok(prompt),
    }
}
