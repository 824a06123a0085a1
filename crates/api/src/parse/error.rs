//! Problems of a job file, and their messages.

use std::fmt;

use serde::de::{self, Expected, Unexpected};
use thiserror::Error;

use super::tree::Position;

/// The first error in a job file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{location}: {}{message}", Prefix(.field))]
pub struct ParseError {
    /// The location of the error.
    pub location: Location,
    /// The field's full path, such as `spec.training.learningRate.peak`. Empty if the error concerns the whole file.
    pub field: String,
    /// The value found, the value expected, and the remedy.
    pub message: String,
}

/// The location of a value: in a file, or in a `--set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A position in a file.
    File {
        /// The file's name as it was given.
        origin: String,
        /// The line and the column, from 1. `None` if the reader does not report them.
        at: Option<(u64, u64)>,
    },
    /// The value of a `--set path=value`.
    Override {
        /// The path as it was given.
        path: String,
        /// The value as it was given.
        value: String,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { origin, at: Some((line, column)) } => write!(f, "{origin}:{line}:{column}"),
            Self::File { origin, at: None } => f.write_str(origin),
            Self::Override { path, value } => write!(f, "--set {path}={value}"),
        }
    }
}

/// Displays a field's path before its message.
struct Prefix<'a>(&'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// An error with its path and position.
#[derive(Debug)]
pub(super) struct LocatedError {
    pub(super) error: DecodeError,
    /// Names of fields and `[index]`es of items, outermost first.
    pub(super) path: Vec<String>,
    pub(super) position: Option<Position>,
}

/// The problem of a value.
#[derive(Debug)]
pub(super) enum DecodeError {
    /// The text is not YAML.
    Yaml(String),
    /// A field that the type doesn't have.
    Field { found: String, known: Vec<&'static str> },
    /// A string that is not an allowed value.
    Value { found: String, allowed: Vec<&'static str> },
    /// A required field that is missing.
    Missing { field: &'static str, hint: Option<String> },
    /// A value of another type.
    Type { found: String, expected: String },
    /// Any other message.
    Other(String),
}

impl LocatedError {
    pub(super) fn at(position: Position, error: DecodeError) -> Self {
        Self { error, path: Vec::new(), position: Some(position) }
    }

    /// Returns this error with `segment`, a field or an `[index]`, in front of its path.
    pub(super) fn under(mut self, segment: impl Into<String>) -> Self {
        self.path.insert(0, segment.into());
        self
    }

    /// Converts an error of the YAML reader. A message of this crate begins with the position, so this function removes
    /// the position from the end of the reader's message.
    pub(super) fn syntax(error: &serde_saphyr::Error) -> Self {
        let message = match error {
            serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
                let key = key.as_deref().unwrap_or("a key");
                DecodeError::Other(format!("`{key}` is given twice: remove one of them"))
            }
            serde_saphyr::Error::Eof { .. } => DecodeError::Other("the file ends before a PipelineJob begins".into()),
            serde_saphyr::Error::MultipleDocuments { .. } => {
                DecodeError::Other("a second document begins here: a job file holds one PipelineJob".into())
            }
            serde_saphyr::Error::Budget { .. } => DecodeError::Other(
                "the file has more values, aliases or nesting than any job has: expected one PipelineJob".into(),
            ),
            other => {
                let text = other.to_string();
                DecodeError::Yaml(text.split(" at line ").next().unwrap_or(&text).to_owned())
            }
        };
        Self { error: message, path: Vec::new(), position: error.location().map(Position::from) }
    }

    /// Returns the error for users. `origin` names the job file.
    pub(super) fn locate(self, origin: &str, overrides: &[(String, String)]) -> ParseError {
        let mut field = String::new();
        let own = match &self.error {
            DecodeError::Missing { field, .. } => Some((*field).to_owned()),
            _ => None,
        };
        for segment in self.path.iter().chain(&own) {
            if !field.is_empty() && !segment.starts_with('[') {
                field.push('.');
            }
            field.push_str(segment);
        }
        let location = match self.position {
            Some(Position::Override(index)) => match overrides.get(index) {
                Some((path, value)) => Location::Override { path: path.clone(), value: value.clone() },
                None => Location::File { origin: origin.into(), at: None },
            },
            Some(Position::File { line, column }) => Location::File { origin: origin.into(), at: Some((line, column)) },
            None => Location::File { origin: origin.into(), at: None },
        };
        ParseError { location, field, message: self.error.to_string() }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yaml(message) => write!(f, "this is not YAML: {message}"),
            Self::Field { found, known } => {
                f.write_str("unknown field; ")?;
                suggest(f, found, known)
            }
            Self::Value { found, allowed } => {
                write!(f, "found {found}; ")?;
                suggest(f, found, allowed)?;
                if allowed.len() > 1 && nearest(found, allowed).is_some() {
                    f.write_str(" Allowed: ")?;
                    list(f, allowed)?;
                }
                Ok(())
            }
            Self::Missing { hint: Some(hint), .. } => write!(f, "is missing: add {hint}"),
            Self::Missing { hint: None, .. } => f.write_str("is missing and has no default: add it"),
            Self::Type { found, expected } => write!(f, "found {found}, expected {expected}"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

/// Writes the name that is nearest to `found`, or all names if none is near.
fn suggest(f: &mut fmt::Formatter<'_>, found: &str, names: &[&str]) -> fmt::Result {
    if let Some(name) = nearest(found, names) {
        return write!(f, "did you mean `{name}`?");
    }
    f.write_str("expected ")?;
    list(f, names)
}

/// Returns the name that the user most likely meant. Returns `None` if more than a third of that name's letters differ
/// from `found`. The comparison ignores case.
pub(crate) fn nearest<'a>(found: &str, names: &[&'a str]) -> Option<&'a str> {
    let found = found.trim_matches('`').to_lowercase();
    let (distance, name) = names
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&found, &name.to_lowercase()), *name))
        .min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= name.len().max(3)).then_some(name)
}

/// Writes names as a choice: `a`, `b` or `c`.
pub(crate) fn list(f: &mut fmt::Formatter<'_>, names: &[&str]) -> fmt::Result {
    match names {
        [] => f.write_str("no field at all"),
        [one] => write!(f, "`{one}`"),
        [head @ .., last] => {
            for (index, name) in head.iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                write!(f, "{comma}`{name}`")?;
            }
            write!(f, " or `{last}`")
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }

    fn unknown_field(found: &str, known: &'static [&'static str]) -> Self {
        Self::Field { found: found.into(), known: known.to_vec() }
    }

    fn unknown_variant(found: &str, allowed: &'static [&'static str]) -> Self {
        Self::Value { found: format!("`{found}`"), allowed: allowed.to_vec() }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing { field, hint: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::mismatch(found, expected)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::mismatch(found, expected)
    }
}

impl DecodeError {
    fn mismatch(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Unit | Unexpected::Option => "nothing".into(),
            Unexpected::Map => "a map".into(),
            Unexpected::Seq => "a list".into(),
            Unexpected::Str(text) => format!("the text \"{}\"", text.escape_debug()),
            Unexpected::Unsigned(value) => format!("`{value}`"),
            Unexpected::Signed(value) => format!("`{value}`"),
            Unexpected::Float(value) => format!("`{value}`"),
            Unexpected::Bool(value) => format!("`{value}`"),
            other => other.to_string(),
        };
        // serde names Rust's types, which the author of a job file need not know
        let expected = match expected.to_string().as_str() {
            "u8" | "u16" | "u32" | "u64" => "a whole number, not negative".into(),
            "i32" | "i64" => "a whole number".into(),
            "f32" | "f64" => "a number".into(),
            "a boolean" => "true or false".into(),
            "a string" => "text (in quotes if it looks like something else)".into(),
            text if text.starts_with("struct ") => "a map of fields".into(),
            text if text.starts_with("enum ") => "one of a list of names".into(),
            "a sequence" => "a list".into(),
            text => text.to_owned(),
        };
        Self::Type { found, expected }
    }
}
