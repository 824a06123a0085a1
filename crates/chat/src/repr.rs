//! Writes values as Python's `str` does, for templates that write a whole list or object.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, Output, State, escape_formatter};

use crate::json::scientific;
use crate::marks;

/// Makes expressions and the filter `string` write values as Python does.
pub(crate) fn extend(environment: &mut Environment<'_>) {
    environment.set_formatter(|out: &mut Output, state: &mut State, value: &Value| match is_python(value) {
        true => out.write_str(&text(value)).map_err(Error::from),
        false => escape_formatter(out, state, value),
    });
    environment.add_filter("string", |value: Value| if is_python(&value) { Value::from(text(&value)) } else { value });
}

/// Returns the value as Python's `str` writes it.
pub(crate) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            write(&mut out, value);
            out
        }
    }
}

/// Whether Python writes the value differently from minijinja.
fn is_python(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Number => !value.is_integer(),
        _ => false,
    }
}

fn write(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(value)),
        ValueKind::Seq => {
            // minijinja has the same kind for tuples and lists, but writes a tuple in parentheses
            let is_tuple = value.to_string().starts_with('(');
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            out.push(if is_tuple { '(' } else { '[' });
            write_items(out, &items, write);
            out.push_str(match is_tuple {
                true if items.len() == 1 => ",)",
                true => ")",
                false => "]",
            });
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            out.push('{');
            write_items(out, &keys, |out, key| {
                write(out, key);
                out.push_str(": ");
                write(out, &value.get_item(key).unwrap_or_default());
            });
            out.push('}');
        }
        _ => _ = write!(out, "{value}"),
    }
}

fn write_items(out: &mut String, items: &[Value], mut write: impl FnMut(&mut String, &Value)) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write(out, item);
    }
}

fn float(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "nan".to_owned(),
        Ok(number) if number.is_infinite() => if number < 0.0 { "-inf" } else { "inf" }.to_owned(),
        Ok(number) => scientific(number),
        Err(_) => value.to_string(),
    }
}

/// Writes a text in quotes. Python uses double quotes for a text that contains single quotes and no double quotes.
fn write_text(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        let code = u32::from(character);
        // writing into a text never fails
        let _ = match character {
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            _ if character == quote => write!(out, "\\{quote}"),
            _ if is_printable(character) => out.write_char(character),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push(quote);
}

/// Whether Python writes the character without an escape. A mark counts as printable, because an escaped mark could not
/// be found in the rendered text.
fn is_printable(character: char) -> bool {
    // `escape_debug` has Python's rule, except that it escapes a combining character at the start of a text, so the
    // text begins with another character
    let mut text = String::from("a");
    text.push(character);
    matches!(character, '\'' | '"' | '\\') || marks::is_mark(character) || text.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use minijinja::render;

    use super::*;

    #[test]
    fn texts_are_those_of_python() {
        for (value, expected) in [
            (
                Value::from(vec!["isn't", "say \"it's\"", "\"", "a\\b\n\r\t"]),
                r#"["isn't", 'say "it\'s"', '"', 'a\\b\n\r\t']"#,
            ),
            (
                Value::from(vec!["a\u{3000}\u{1c}\u{7f}\u{a0}", "é漢🙂e\u{301}", "\u{e000}\u{f0000}\u{ad}"]),
                "['a\\u3000\\x1c\\x7f\\xa0', 'é漢🙂e\u{301}', '\\ue000\\U000f0000\\xad']",
            ),
            (
                Value::from(vec![Value::from(1e16), Value::from(0.1), Value::from(true), Value::from(())]),
                "[1e+16, 0.1, True, None]",
            ),
            (Value::from(1e-5), "1e-05"),
            (Value::from("isn't"), "isn't"),
        ] {
            assert_eq!(text(&value), expected);
        }
        let mut environment = Environment::new();
        extend(&mut environment);
        let source = "{{ {'a': [1, 'b']} }} {{ {'a': \"'\"} | string }} {{ (1, 'a') }} {{ (1,) }} {{ 1.5 }} {{ 2.0 }}";
        assert_eq!(render!(in environment, source), r#"{'a': [1, 'b']} {'a': "'"} (1, 'a') (1,) 1.5 2.0"#);
    }
}
