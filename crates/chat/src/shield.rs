//! Distinguishes special tokens that a conversation spells from special tokens that a template writes. While a template
//! is rendered, private-use characters (twins) replace the characters of special tokens that the conversation spells.
//! The text that the template itself writes has no twins.
//!
//! A twin replaces one character, so the number of characters of a text stays the same. White space has no twins. A
//! template that inspects the replaced text may write a different text. The caller therefore compares the rendered text
//! with a rendering without twins. If the texts differ, the caller tries a smaller [`Reach`]. Roles, types and keys
//! that are plain names are never replaced, because templates compare them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

use crate::marks::{self, CLOSE, OPEN};

/// The byte in [`Marked::shadow`] for each byte of a character that was a twin. This byte never occurs in UTF-8.
const HIDDEN: u8 = 0xFF;

/// The characters of a conversation that twins replace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// All characters that occur in special tokens. With this reach, even a template that joins texts can't form a
    /// special token from the texts of the conversation.
    All,
    /// Only the characters of whole special tokens, and the ends of texts at which a special token may begin or end. A
    /// template that searches messages for `</think>` needs this reach, because [`Reach::All`] replaces characters of
    /// `</think>`.
    Tokens,
}

/// The special tokens of a vocabulary, and the twins of their characters.
pub(crate) struct Shield {
    tokens: Vec<String>,
    occurrences: AhoCorasick,
    /// The twin of each character of a special token.
    twins: BTreeMap<char, char>,
    /// The character of each twin.
    characters: BTreeMap<char, char>,
}

/// A rendered text without its marks, and the places of the marks.
pub(crate) struct Marked {
    pub(crate) text: String,
    /// The bytes of the text. Each byte of a character that was a twin is `HIDDEN`.
    pub(crate) shadow: Vec<u8>,
    /// The byte ranges that generation blocks have written, sorted by their starts.
    pub(crate) spans: Vec<Range<usize>>,
}

impl Shield {
    /// Creates the shield of special tokens. Returns `None` if the tokens are too large or have too many different
    /// characters.
    pub(crate) fn new(tokens: Vec<String>) -> Option<Shield> {
        let occurrences = AhoCorasick::new(&tokens).ok()?;
        let characters: BTreeSet<char> = tokens.iter().flat_map(|token| token.chars()).collect();
        let visible = characters.into_iter().filter(|character| !character.is_whitespace());
        let twins = visible.enumerate().map(|(index, character)| Some((character, marks::twin(index)?)));
        let twins: BTreeMap<char, char> = twins.collect::<Option<_>>()?;
        let characters = twins.iter().map(|(&character, &twin)| (twin, character)).collect();
        Some(Shield { tokens, occurrences, twins, characters })
    }

    /// Returns a special token that `text` contains.
    pub(crate) fn token_in(&self, text: &str) -> Option<&str> {
        let found = self.occurrences.find(text)?;
        self.tokens.get(found.pattern().as_usize()).map(String::as_str)
    }

    /// Returns a special token of which `value` contains at least a part: a key or a text contains the token, a text is
    /// a part of the token, or a text begins or ends with a part of the token.
    pub(crate) fn part_in(&self, value: &Value) -> Option<&str> {
        match value {
            Value::String(text) => self.token_in(text).or_else(|| self.token_at_ends(text)),
            Value::Array(values) => values.iter().find_map(|value| self.part_in(value)),
            Value::Object(map) => {
                map.iter().find_map(|(key, value)| self.token_in(key).or_else(|| self.part_in(value)))
            }
            _ => None,
        }
    }

    /// Returns the messages with twins. Roles stay as they are.
    pub(crate) fn messages(&self, messages: &[Value], reach: Reach) -> Vec<Value> {
        let shielded = |message: &Value| {
            let mut shielded = self.value(message, reach);
            if let (Some(fields), Some(role)) = (shielded.as_object_mut(), message.get("role")) {
                fields.insert("role".into(), role.clone());
            }
            shielded
        };
        messages.iter().map(shielded).collect()
    }

    /// Returns the value with twins. Types and keys that are plain names stay as they are, because templates compare
    /// types and look up keys.
    pub(crate) fn value(&self, value: &Value, reach: Reach) -> Value {
        let entry = |(key, value): (&String, &Value)| match value {
            Value::String(name) if key == "type" && self.is_plain_name(name) => (key.clone(), value.clone()),
            _ => {
                let key = if self.is_plain_name(key) { key.clone() } else { self.text(key, Reach::Tokens) };
                (key, self.value(value, reach))
            }
        };
        match value {
            Value::String(text) => Value::String(self.text(text, reach)),
            Value::Array(values) => values.iter().map(|value| self.value(value, reach)).collect(),
            Value::Object(map) => Value::Object(map.iter().map(entry).collect::<Map<_, _>>()),
            other => other.clone(),
        }
    }

    fn is_plain_name(&self, text: &str) -> bool {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        !text.is_empty() && text.chars().all(is_plain) && self.token_in(text).is_none()
    }

    fn text(&self, text: &str, reach: Reach) -> String {
        let mut ranges = match reach {
            Reach::All => iter::once(0..text.len()).collect(),
            Reach::Tokens => self.tokens_and_ends(text),
        };
        ranges.sort_by_key(|range| range.start);
        let mut ranges = ranges.into_iter().peekable();
        let mut hidden_up_to = 0;
        let replaced = |(position, character)| {
            while let Some(range) = ranges.next_if(|range| range.start <= position) {
                hidden_up_to = range.end.max(hidden_up_to);
            }
            let twin = self.twins.get(&character).filter(|_| position < hidden_up_to);
            twin.copied().unwrap_or(character)
        };
        text.char_indices().map(replaced).collect()
    }

    /// Returns byte ranges in `text` of three kinds: the special tokens, and for each special token, the longest end of
    /// `text` that is the beginning of the token, and the longest start of `text` that is the end of the token. If
    /// `text` is the middle of a token, one range is the whole text.
    fn tokens_and_ends(&self, text: &str) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> =
            self.occurrences.find_overlapping_iter(text).map(|found| found.range()).collect();
        for token in &self.tokens {
            let ends = parts(token).filter(|(start, _)| text.ends_with(start)).map(|(start, _)| start.len()).max();
            let starts = parts(token).filter(|(_, end)| text.starts_with(end)).map(|(_, end)| end.len()).max();
            ranges.extend(ends.map(|length| text.len() - length..text.len()));
            ranges.extend(starts.map(|length| 0..length));
            ranges.extend(token.contains(text).then_some(0..text.len()));
        }
        ranges
    }

    /// Returns a special token if `text` ends with the beginning of the token or begins with the end of the token. Also
    /// returns a token that contains the whole `text`.
    fn token_at_ends(&self, text: &str) -> Option<&str> {
        let touches = |token: &&String| {
            parts(token).any(|(start, end)| text.ends_with(start) || text.starts_with(end))
                || !text.is_empty() && token.contains(text)
        };
        self.tokens.iter().find(touches).map(String::as_str)
    }

    /// Separates a rendered text from its marks; `None` if the marks of a generation block are not a pair.
    pub(crate) fn read(&self, rendered: &str) -> Option<Marked> {
        let mut marked = Marked { text: String::with_capacity(rendered.len()), shadow: Vec::new(), spans: Vec::new() };
        let mut open = Vec::new();
        let mut rest = rendered;
        while let Some((plain, character, after)) = marks::split_at_first(rest) {
            marked.text.push_str(plain);
            marked.shadow.extend_from_slice(plain.as_bytes());
            match (character, self.characters.get(&character)) {
                (OPEN, _) => open.push(marked.text.len()),
                (CLOSE, _) => marked.spans.push(open.pop()?..marked.text.len()),
                (_, Some(&original)) => {
                    marked.text.push(original);
                    marked.shadow.resize(marked.text.len(), HIDDEN);
                }
                (_, None) => {
                    marked.text.push(character);
                    marked.shadow.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            rest = after;
        }
        marked.text.push_str(rest);
        marked.shadow.extend_from_slice(rest.as_bytes());
        marked.spans.sort_by_key(|span| span.start);
        open.is_empty().then_some(marked)
    }
}

/// Returns all ways to split a token into two parts.
fn parts(token: &str) -> impl Iterator<Item = (&str, &str)> {
    token.char_indices().skip(1).map(|(position, _)| token.split_at(position))
}
