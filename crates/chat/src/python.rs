//! Implements the string methods, tests and filters whose results differ between minijinja and Python. Hugging Face
//! templates rely on Python's results.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::repr::text;

/// Adds the methods, tests and filters to `environment`.
pub(crate) fn extend(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("trim", |value: &Value, set: Option<&str>| strip(&text(value), set, true, true).to_owned());
    environment.add_filter("tojson", crate::json::to_json);
    environment.add_test("iterable", |value: &Value| is_text(value) || value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        is_text(value) || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
}

fn is_text(value: &Value) -> bool {
    value.kind() == ValueKind::String
}

fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => match of_text(text, name, arguments) {
            Some(result) => result,
            None => unknown_method_callback(state, value, name, arguments),
        },
        None => unknown_method_callback(state, value, name, arguments),
    }
}

/// Calls a string method whose result differs between minijinja and Python; returns `None` for other methods.
fn of_text(text: &str, name: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let stripped = |start, end| {
        let (set,): (Option<&str>,) = from_args(arguments)?;
        Ok(Value::from(strip(text, set, start, end)))
    };
    let part = |cut: for<'a> fn(&'a str, &str) -> Option<&'a str>| {
        let (affix,): (&str,) = from_args(arguments)?;
        Ok(Value::from(cut(text, affix).unwrap_or(text)))
    };
    Some(match name {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "removeprefix" => part(|text, affix| text.strip_prefix(affix)),
        "removesuffix" => part(|text, affix| text.strip_suffix(affix)),
        "isspace" => Ok(Value::from(!text.is_empty() && text.chars().all(is_space))),
        "split" | "rsplit" => split(text, name, arguments),
        "splitlines" => split_lines(text, arguments),
        _ => return None,
    })
}

/// Whether Python counts the character as white space. Python also counts four separators that Unicode does not count.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Removes the characters of `set` (without a set: white space) from the start and the end of a text, as `start` and
/// `end` say.
fn strip<'a>(text: &'a str, set: Option<&str>, start: bool, end: bool) -> &'a str {
    let is_in = |character: char| set.map_or_else(|| is_space(character), |set| set.contains(character));
    let text = if start { text.trim_start_matches(is_in) } else { text };
    if end { text.trim_end_matches(is_in) } else { text }
}

fn split(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(arguments)?;
    let pieces = limit.and_then(|limit| usize::try_from(limit).ok()).map(|limit| limit.saturating_add(1));
    match (separator, pieces) {
        (Some(""), _) => Err(Error::new(ErrorKind::InvalidOperation, "split: the separator is empty")),
        (Some(separator), None) => Ok(text.split(separator).map(Value::from).collect()),
        (Some(separator), Some(pieces)) if name == "split" => {
            Ok(text.splitn(pieces, separator).map(Value::from).collect())
        }
        (Some(separator), Some(pieces)) => {
            let mut from_the_end: Vec<&str> = text.rsplitn(pieces, separator).collect();
            from_the_end.reverse();
            Ok(from_the_end.into_iter().map(Value::from).collect())
        }
        (None, None) => Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect()),
        (None, Some(_)) => Err(Error::new(ErrorKind::InvalidOperation, "split: a limit needs a separator")),
    }
}

fn split_lines(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(arguments)?;
    let ends = ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(position) = rest.find(ends) {
        let (line, from_end) = rest.split_at(position);
        let width = if from_end.starts_with("\r\n") { 2 } else { from_end.chars().next().map_or(0, char::len_utf8) };
        let (end, after) = from_end.split_at(width);
        lines.push(if keep_ends == Some(true) { Value::from([line, end].concat()) } else { Value::from(line) });
        rest = after;
    }
    lines.extend((!rest.is_empty()).then(|| Value::from(rest)));
    Ok(Value::from(lines))
}
