//! Losses of a corpus's texts in its ids. They are counted while the corpus is tokenised, so that no loss is silent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The number of examples that a note names.
const EXAMPLES: usize = 3;

/// Losses of the texts in their tokens.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Findings {
    /// Special tokens that a text spells and that were encoded as text, with their counts.
    special_as_text: BTreeMap<String, u64>,
    /// Characters that have no token and were left out.
    dropped: u64,
    dropped_examples: BTreeSet<char>,
    /// Tokens that stand for characters outside of the vocabulary.
    pub(crate) unknown: u64,
    /// Documents that have text but no token at all.
    pub(crate) without_tokens: u64,
}

impl Findings {
    pub(crate) fn special_as_text<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            match self.special_as_text.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(self.special_as_text.insert(name.to_owned(), 1)),
            }
        }
    }

    /// Counts the characters of `text` that no token covers. `ranges` are the tokens' ranges of bytes. White space
    /// separates words and is not counted.
    pub(crate) fn dropped(&mut self, text: &str, ranges: &[(usize, usize)]) {
        let mut covered = 0;
        let mut ranges = ranges.iter().peekable();
        for (at, character) in text.char_indices() {
            while let Some((_, end)) = ranges.next_if(|(start, _)| *start <= at) {
                covered = covered.max(*end);
            }
            if at >= covered && !character.is_whitespace() {
                self.dropped += 1;
                if self.dropped_examples.len() < EXAMPLES {
                    self.dropped_examples.insert(character);
                }
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Findings) {
        for (name, count) in &other.special_as_text {
            *self.special_as_text.entry(name.clone()).or_default() += count;
        }
        self.dropped += other.dropped;
        let missing = EXAMPLES.saturating_sub(self.dropped_examples.len());
        self.dropped_examples.extend(other.dropped_examples.iter().take(missing));
        self.unknown += other.unknown;
        self.without_tokens += other.without_tokens;
    }

    /// Sentences for people about the losses; empty if nothing was lost.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.special_as_text.is_empty() {
            let mut counts: Vec<(&String, &u64)> = self.special_as_text.iter().collect();
            counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
            let examples: Vec<String> =
                counts.iter().take(EXAMPLES).map(|(name, count)| format!("{name} ({count} times)")).collect();
            notes.push(format!(
                "the texts spell special tokens, which are trained on as the characters they are written with: {}; set \
                 data.specialTokens to Parse to make them tokens",
                examples.join(", ")
            ));
        }
        if self.dropped > 0 {
            let examples: Vec<String> = self.dropped_examples.iter().map(|c| format!("{c:?}")).collect();
            notes.push(format!(
                "the tokenizer has no token for {} of the corpus, such as {}: they are left out",
                count(self.dropped, "character"),
                examples.join(", ")
            ));
        }
        if self.unknown > 0 {
            notes.push(format!(
                "the tokenizer lacks characters of the corpus: {} for them",
                if self.unknown == 1 {
                    "1 unknown token stands".into()
                } else {
                    format!("{} unknown tokens stand", self.unknown)
                }
            ));
        }
        if self.without_tokens > 0 {
            notes.push(format!(
                "{} with text has no token in this tokenizer and is left out",
                count(self.without_tokens, "document")
            ));
        }
        notes
    }
}

fn count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
