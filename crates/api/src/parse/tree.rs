//! YAML as a tree in which every value and key has its position.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::LocatedError;

/// The location of a value: in the file, or in a `--set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// A position in the file. Line and column count from 1.
    File { line: u64, column: u64 },
    /// The argument `--set` with this index.
    Override(usize),
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    pub(super) value: Value,
    pub(super) position: Position,
}

/// A key and its position.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) position: Position,
}

/// A value of YAML's data model.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    String(String),
    List(Vec<YamlNode>),
    Map(Vec<(Key, YamlNode)>),
}

impl YamlNode {
    pub(super) fn from_yaml(text: &str) -> Result<Self, LocatedError> {
        let options = serde_saphyr::options! {
            strict_booleans: true,
            with_snippet: false,
            // Like kubectl, the reader takes 010 as the octal number 8.
            legacy_octal_numbers: true,
            non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        };
        match serde_saphyr::from_str_with_options::<Spanned<Value>>(text, options) {
            Ok(spanned) => Ok(Self::from(spanned)),
            Err(error) => Err(LocatedError::syntax(error.without_snippet())),
        }
    }

    /// Returns the key's position and the value of the map's entry `name`. `None` if there is no such entry, or if this
    /// value is no map.
    pub(super) fn entry(&self, name: &str) -> Option<(Position, &Self)> {
        match &self.value {
            Value::Map(entries) => {
                entries.iter().find(|(key, _)| key.name == name).map(|(key, node)| (key.position, node))
            }
            _ => None,
        }
    }

    /// Returns the item of a list at `index`.
    pub(super) fn item(&self, index: usize) -> Option<&Self> {
        match &self.value {
            Value::List(items) => items.get(index),
            _ => None,
        }
    }

    /// Sets the position of the value and of everything below it.
    pub(super) fn move_to(&mut self, position: Position) {
        self.position = position;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.move_to(position)),
            Value::Map(entries) => entries.iter_mut().for_each(|(key, node)| {
                key.position = position;
                node.move_to(position);
            }),
            _ => {}
        }
    }
}

impl Value {
    /// Returns the value as an error message shows it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(value) => format!("`{value}`"),
            Self::Unsigned(value) => format!("`{value}`"),
            Self::Negative(value) => format!("`{value}`"),
            Self::Float(value) => format!("`{value}`"),
            Self::String(text) if text.chars().count() > 40 => {
                format!("the text \"{}...\"", text.chars().take(40).collect::<String>().escape_debug())
            }
            Self::String(text) => format!("the text \"{}\"", text.escape_debug()),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a map".into(),
        }
    }
}

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self::File { line: location.line(), column: location.column() }
    }
}

impl From<Spanned<Value>> for YamlNode {
    fn from(spanned: Spanned<Value>) -> Self {
        Self { value: spanned.value, position: spanned.referenced.into() }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Value>>()? {
            items.push(item.into());
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, node)) = access.next_entry::<Spanned<String>, Spanned<Value>>()? {
            let key = Key { name: key.value, position: key.referenced.into() };
            entries.push((key, node.into()));
        }
        Ok(Value::Map(entries))
    }
}
