//! Deserializes the tree of a YAML file with serde. `serde_path_to_error` reports the path of a failure.

use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, IntoDeserializer, Visitor};
use serde_path_to_error::{Path, Segment};

use super::error::{DecodeError, LocatedError};
use super::tree::{Position, Value, YamlNode};

/// Deserializes a `T` from the tree.
pub(super) fn decode<'de, T: Deserialize<'de>>(root: &'de YamlNode) -> Result<T, LocatedError> {
    serde_path_to_error::deserialize(root).map_err(|error| {
        let (path, value, key) = locate(root, error.path());
        let error = error.into_inner();
        let position = if matches!(error, DecodeError::Field { .. }) { key } else { value };
        LocatedError { error, path, position: Some(position) }
    })
}

/// Returns the path as names and `[index]`es, the position of the innermost existing value on the path, and the
/// position of this value's key.
fn locate(root: &YamlNode, path: &Path) -> (Vec<String>, Position, Position) {
    let (mut node, mut value, mut key) = (Some(root), root.position, root.position);
    let mut names = Vec::new();
    for segment in path {
        let (name, entry) = match segment {
            Segment::Seq { index } => {
                let item = node.and_then(|node| node.item(*index));
                (format!("[{index}]"), item.map(|item| (item.position, item)))
            }
            Segment::Map { key } => (key.clone(), node.and_then(|node| node.entry(key))),
            Segment::Enum { .. } | Segment::Unknown => continue,
        };
        if let Some((of_key, of_value)) = entry {
            key = of_key;
            // An error about a map is reported at the map's key, not at its first entry on the line below.
            value = if matches!(of_value.value, Value::Map(_)) { of_key } else { of_value.position };
        }
        names.push(name);
        node = entry.map(|(_, node)| node);
    }
    (names, value, key)
}

/// Defines methods that deserialize an integer. Like kubectl, they also accept a float without a fraction, such as
/// `1e3`.
macro_rules! deserialize_integers {
    ($($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match self.value {
                // An f64 represents every whole number up to 2^53 exactly.
                Value::Float(value) if value.fract() == 0.0 && (0.0..9e15).contains(&value) => {
                    visitor.visit_u64(value as u64)
                }
                _ => self.deserialize_any(visitor),
            }
        })+
    };
}

impl<'de> Deserializer<'de> for &'de YamlNode {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Negative(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Map(entries) => {
                visitor.visit_map(MapDeserializer::new(entries.iter().map(|(key, node)| (key.name.as_str(), node))))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::String(text) => text.as_str().into_deserializer().deserialize_enum(name, variants, visitor),
            other => Err(DecodeError::Value { found: other.describe(), allowed: variants.to_vec() }),
        }
    }

    deserialize_integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, DecodeError> for &'de YamlNode {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
