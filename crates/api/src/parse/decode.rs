//! serde over the tree. An error gains its path and place on the way up, so it needs no help from those who made it.

use serde::Deserializer;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor};

use super::error::Fault;
use super::tree::{Key, Node, Value};

/// `1e3` is a whole number, as it is to kubectl.
macro_rules! whole_numbers {
    ($($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self.value {
                // Up to 2^53 every whole f64 is exact.
                Value::Float(value) if value.fract() == 0.0 && (0.0..9e15).contains(&value) => {
                    visitor.visit_u64(value as u64)
                }
                _ => self.deserialize_any(visitor),
            }
        })+
    };
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Negative(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            Value::Map(entries) => visitor.visit_map(Entries { entries: entries.iter(), current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.value {
            Value::String(word) => visitor.visit_enum(Word(word)),
            other => Err(Fault::word(other.describe(), variants)),
        }
    }

    whole_numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let item = seed.deserialize(node).map_err(|fault| fault.under(format!("[{index}]")).at(node.place))?;
        Ok(Some(item))
    }
}

struct Entries<'de> {
    entries: std::slice::Iter<'de, (Key, Node)>,
    current: Option<&'de (Key, Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        self.current = self.entries.next();
        let Some((key, _)) = self.current else { return Ok(None) };
        let deserializer: StrDeserializer<'_, Fault> = key.name.as_str().into_deserializer();
        let name = seed.deserialize(deserializer).map_err(|fault| fault.under(&key.name).at(key.place))?;
        Ok(Some(name))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let Some((key, node)) = self.current else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        // A missing field is named where its map begins: at the key, not at the line below.
        let place = if matches!(node.value, Value::Map(_)) { key.place } else { node.place };
        seed.deserialize(node).map_err(|fault| fault.under(&key.name).at(place))
    }
}

struct Word<'de>(&'de str);

impl<'de> de::EnumAccess<'de> for Word<'de> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        let deserializer: StrDeserializer<'_, Fault> = self.0.into_deserializer();
        Ok((seed.deserialize(deserializer)?, self))
    }
}

/// Every enum of the API is a word: none carries a value.
impl<'de> VariantAccess<'de> for Word<'de> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::Str(self.0), &"a map"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::Str(self.0), &visitor))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Fault> {
        Err(de::Error::invalid_type(Unexpected::Str(self.0), &visitor))
    }
}
