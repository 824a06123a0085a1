//! Characters that mark text while a template is rendered. A twin replaces a character of a special token that a
//! message spells. A placeholder replaces a special token in the input of the tokenizer. The marks are private-use
//! characters of the last plane of Unicode. Templates, settings and conversations must not contain these characters.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::ReservedCharacter;

const RESERVED: RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';
/// The first byte of a mark in UTF-8. No character before U+100000 begins with this byte.
const FIRST_BYTE: u8 = 0xF4;
const FIRST_TWIN: u32 = 0x10_0000;
const FIRST_PLACEHOLDER: u32 = 0x10_8000;

/// The mark before a text that a generation block writes.
pub(crate) const OPEN: char = '\u{10FFFC}';
/// The mark after a text that a generation block writes.
pub(crate) const CLOSE: char = '\u{10FFFD}';
/// The largest number of twins, and the largest number of placeholders.
pub(crate) const CAPACITY: usize = 0x7FF0;

/// Returns an error if a mark was found in `place`.
pub(crate) fn check(place: &str, found: Option<char>) -> Result<(), ReservedCharacter> {
    found.map_or(Ok(()), |character| Err(ReservedCharacter { place: place.into(), character }))
}

/// Splits a text at the first character that may be a mark. Returns the text before the character, the character, and
/// the text after it. The search compares bytes, because the proof of a mask renders the conversation once for each
/// turn, and a search by characters would take most of the proof's time.
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

/// Returns the first mark in `text`.
pub(crate) fn find(text: &str) -> Option<char> {
    text.chars().find(|&character| is_mark(character))
}

/// Returns the first mark in a text or a key of `value`.
pub(crate) fn find_in(value: &Value) -> Option<char> {
    match value {
        Value::String(text) => find(text),
        Value::Array(values) => values.iter().find_map(find_in),
        Value::Object(map) => map.iter().find_map(|(key, value)| find(key).or_else(|| find_in(value))),
        _ => None,
    }
}

/// Returns the twin of the character with this index among the characters of special tokens. The twin replaces the
/// character in texts of the conversation.
pub(crate) fn twin(index: usize) -> Option<char> {
    nth(FIRST_TWIN, index)
}

/// Returns the placeholder of the special token with this index. The placeholder replaces the token in the text that
/// the tokenizer encodes.
pub(crate) fn placeholder(index: usize) -> Option<char> {
    nth(FIRST_PLACEHOLDER, index)
}

/// Returns the index of a special token by its placeholder.
pub(crate) fn index_of_placeholder(character: char) -> Option<usize> {
    let index = usize::try_from(u32::from(character).checked_sub(FIRST_PLACEHOLDER)?).ok()?;
    (index < CAPACITY).then_some(index)
}

fn nth(first: u32, index: usize) -> Option<char> {
    (index < CAPACITY).then_some(())?;
    char::from_u32(first + u32::try_from(index).ok()?)
}
