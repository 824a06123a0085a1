//! Characters that mark text while a template is rendered. They are private-use characters of the last plane, which
//! templates, settings and conversations must not contain.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::ReservedCharacter;

const RESERVED: RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';
/// The first byte of a mark in UTF-8, with which no character before U+100000 begins.
const FIRST_BYTE: u8 = 0xF4;
const FIRST_TWIN: u32 = 0x10_0000;
const FIRST_PLACEHOLDER: u32 = 0x10_8000;

/// The mark before a text that a generation block writes.
pub(crate) const OPEN: char = '\u{10FFFC}';
/// The mark after it.
pub(crate) const CLOSE: char = '\u{10FFFD}';
/// The number of twins, and of placeholders.
pub(crate) const CAPACITY: usize = 0x7FF0;

/// Refuses the mark that was found in `place`.
pub(crate) fn check(place: &str, found: Option<char>) -> Result<(), ReservedCharacter> {
    found.map_or(Ok(()), |character| Err(ReservedCharacter { place: place.into(), character }))
}

/// The text before the first character that may be a mark, the character, and the text after it. A proof renders a
/// conversation once for each turn, so that most time would go into the decoding of characters that are no marks.
pub(crate) fn split_at_first(text: &str) -> Option<(&str, char, &str)> {
    let at = text.bytes().position(|byte| byte == FIRST_BYTE)?;
    let (before, rest) = text.split_at(at);
    let mut characters = rest.chars();
    Some((before, characters.next()?, characters.as_str()))
}

/// Whether the character may be a mark.
pub(crate) fn is_mark(character: char) -> bool {
    RESERVED.contains(&character)
}

/// A mark in `text`.
pub(crate) fn find(text: &str) -> Option<char> {
    text.chars().find(|&character| is_mark(character))
}

/// A mark in a text or a key of `value`.
pub(crate) fn find_in(value: &Value) -> Option<char> {
    match value {
        Value::String(text) => find(text),
        Value::Array(values) => values.iter().find_map(find_in),
        Value::Object(map) => map.iter().find_map(|(key, value)| find(key).or_else(|| find_in(value))),
        _ => None,
    }
}

/// The character that stands for the special character with this index where a conversation has written it.
pub(crate) fn twin(index: usize) -> Option<char> {
    nth(FIRST_TWIN, index)
}

/// The character that stands for the special token with this index in a text to be encoded.
pub(crate) fn placeholder(index: usize) -> Option<char> {
    nth(FIRST_PLACEHOLDER, index)
}

/// The index of a special token by its placeholder.
pub(crate) fn index_of_placeholder(character: char) -> Option<usize> {
    let index = usize::try_from(u32::from(character).checked_sub(FIRST_PLACEHOLDER)?).ok()?;
    (index < CAPACITY).then_some(index)
}

fn nth(first: u32, index: usize) -> Option<char> {
    (index < CAPACITY).then_some(())?;
    char::from_u32(first + u32::try_from(index).ok()?)
}
