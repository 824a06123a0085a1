//! Writes JSON as Python's `json.dumps` does.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The layout of a JSON document.
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// Implements the filter `tojson` of transformers. The filter escapes no HTML, and keeps the order of keys.
pub(crate) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        Some(indent) => Some(indent.as_str().map_or_else(|| spaces(&indent), |text| Ok(text.to_owned()))?),
        None => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?.unwrap_or_default();
    let between = if indent.is_some() { "," } else { ", " };
    let style = Style {
        indent,
        item_separator: separators.first().map_or(between, String::as_str).to_owned(),
        key_separator: separators.get(1).map_or(": ", String::as_str).to_owned(),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

fn spaces(count: &Value) -> Result<String, Error> {
    usize::try_from(count.clone()).map(|count| " ".repeat(count.min(64)))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => _ = write!(out, "{value}"),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(out, ['[', ']'], depth, &items, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort_by_key(Value::to_string);
                }
                self.write_items(out, ['{', '}'], depth, &keys, |out, key| {
                    self.write_text(out, &key.to_string());
                    out.push_str(&self.key_separator);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            other => {
                let problem = format!("tojson can't write a value that is {other}");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: &[Value],
        write: impl Fn(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.write_line_end(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.write_line_end(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn write_line_end(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if character < ' ' || self.ensure_ascii && !matches!(character, ' '..='~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// Writes a number as Python's `repr` does: with the shortest digits, and with an exponent for large and small numbers.
fn float(number: f64) -> String {
    if number.is_finite() { scientific(number) } else { name(number) }
}

/// Writes a finite number as [`float`] does.
pub(crate) fn scientific(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..=15) => format!("{number:?}"),
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        Err(_) => scientific,
    }
}

/// Returns the name of a number that is not finite, as in Python's JSON.
fn name(number: f64) -> String {
    let sign = if number.is_sign_negative() && !number.is_nan() { "-" } else { "" };
    format!("{sign}{}", if number.is_nan() { "NaN" } else { "Infinity" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_python() {
        let numbers = [1.0, 0.1, -2.5, 1e15, 1e16, 1.5e16, 1e-4, 1e-5, 1.25e-7, 1e300, 123_456_789.123];
        let expected = [
            "1.0",
            "0.1",
            "-2.5",
            "1000000000000000.0",
            "1e+16",
            "1.5e+16",
            "0.0001",
            "1e-05",
            "1.25e-07",
            "1e+300",
            "123456789.123",
        ];
        assert_eq!(numbers.map(float), expected);
    }
}
