//! Findings about the texts of a corpus: the parts of texts that token ids do not represent. The tokenisation counts
//! these parts, so that no text is lost silently.

use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::AhoCorasick;
use serde::{Deserialize, Serialize};
use stagecoach_chat::KNOWN_ROLES;

use crate::corpus::{BadRecordReason, few};

/// The number of examples that a note names.
const EXAMPLES: usize = 3;

/// The number of characters of a role that a note shows.
const MAX_ROLE: usize = 40;

/// The largest number of pairs of file and reason with a separate count of bad records. The checkpoints of a job with a
/// streamed corpus contain the findings, so the size of the findings must not grow with the corpus.
const MAX_BAD_RECORDS: usize = 100;

/// The parts of texts that their tokens do not represent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Findings {
    /// Special tokens that a text spells and that were encoded as text, with their counts.
    special_as_text: BTreeMap<String, u64>,
    /// The number of characters that have no token and were left out.
    dropped: u64,
    dropped_examples: BTreeSet<char>,
    /// The number of tokens that stand for characters outside of the vocabulary.
    pub(crate) unknown: u64,
    /// The number of documents that have text but no token.
    pub(crate) without_tokens: u64,
    /// The number of lone surrogates in JSON, each of which became U+FFFD.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) lone_surrogates: u64,
    /// The number of conversations that were cut at the end of a turn.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) cut_conversations: u64,
    /// The number of messages with an unknown role.
    #[serde(skip_serializing_if = "is_zero")]
    unknown_roles: u64,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    unknown_role_examples: BTreeSet<String>,
    /// The records that are left out, in the order of the files and reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bad_records: Vec<BadRecords>,
}

/// The ways in which the ids of a tokenizer may lose a part of a text.
#[derive(Clone)]
pub(crate) struct LossyEncoding {
    /// The matcher of the names of special tokens that are encoded as text.
    pub(crate) special_names: Option<AhoCorasick>,
    /// The id that stands for characters outside of the vocabulary.
    pub(crate) unknown_id: Option<u32>,
    /// Whether the tokenizer may leave out characters that have no token.
    pub(crate) may_drop_characters: bool,
}

impl LossyEncoding {
    /// Counts the tokens that stand for characters outside of the vocabulary.
    pub(crate) fn count_unknown(&self, ids: &[u32], findings: &mut Findings) {
        if let Some(unknown_id) = self.unknown_id {
            findings.unknown += ids.iter().filter(|&&id| id == unknown_id).count() as u64;
        }
    }
}

/// The bad records of a file that have the same reason. The file is identified by its index, not by its name, because
/// corpora with the same contents share a cache.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
struct BadRecords {
    /// The index of the file; `None` for all files beyond the limit [`MAX_BAD_RECORDS`].
    file: Option<usize>,
    reason: BadRecordReason,
    count: u64,
}

/// Whether a count is 0 and therefore not serialised. A cache without these findings has the bytes that older versions
/// wrote.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn add_examples<T: Ord + Clone>(examples: &mut BTreeSet<T>, others: &BTreeSet<T>) {
    let missing = EXAMPLES.saturating_sub(examples.len());
    examples.extend(others.iter().take(missing).cloned());
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

    /// Counts messages with unknown roles.
    pub(crate) fn unknown_roles<'a>(&mut self, roles: impl Iterator<Item = &'a str>) {
        for role in roles {
            self.unknown_roles += 1;
            if self.unknown_role_examples.len() < EXAMPLES {
                self.unknown_role_examples.insert(role.chars().take(MAX_ROLE).collect());
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

    /// Counts a bad record of the file with index `file`.
    pub(crate) fn bad_record(&mut self, file: usize, reason: BadRecordReason) {
        self.add_bad_records(&BadRecords { file: Some(file), reason, count: 1 });
    }

    fn add_bad_records(&mut self, records: &BadRecords) {
        match self.bad_records.binary_search_by_key(&records.key(), BadRecords::key) {
            Ok(at) => self.bad_records[at].count += records.count,
            Err(_) if records.file.is_some() && self.bad_records.len() >= MAX_BAD_RECORDS => {
                self.add_bad_records(&BadRecords { file: None, ..records.clone() });
            }
            Err(at) => self.bad_records.insert(at, records.clone()),
        }
    }

    pub(crate) fn add(&mut self, other: &Findings) {
        for (name, count) in &other.special_as_text {
            *self.special_as_text.entry(name.clone()).or_default() += count;
        }
        self.dropped += other.dropped;
        add_examples(&mut self.dropped_examples, &other.dropped_examples);
        self.unknown += other.unknown;
        self.without_tokens += other.without_tokens;
        self.lone_surrogates += other.lone_surrogates;
        self.cut_conversations += other.cut_conversations;
        self.unknown_roles += other.unknown_roles;
        add_examples(&mut self.unknown_role_examples, &other.unknown_role_examples);
        other.bad_records.iter().for_each(|records| self.add_bad_records(records));
    }

    /// Returns sentences for the user about the findings. The list is empty if nothing was lost. `files` are the names
    /// of the corpus's files.
    pub(crate) fn notes(&self, files: &[&str]) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.special_as_text.is_empty() {
            let mut counts: Vec<(&String, &u64)> = self.special_as_text.iter().collect();
            counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
            let examples: Vec<String> =
                counts.iter().take(EXAMPLES).map(|(name, count)| format!("{name} ({count} times)")).collect();
            notes.push(format!(
                "the texts contain the names of special tokens, which are encoded as ordinary text: {}; set \
                 data.specialTokens to Parse to encode them as special tokens",
                examples.join(", ")
            ));
        }
        if self.dropped > 0 {
            let examples: Vec<String> = self.dropped_examples.iter().map(|c| format!("{c:?}")).collect();
            notes.push(format!(
                "the tokenizer has no token for {} of the corpus, such as {}: they are left out",
                count(self.dropped, "character", "characters"),
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
                count(self.without_tokens, "document", "documents")
            ));
        }
        if self.lone_surrogates > 0 {
            notes.push(format!(
                "the texts have {} without the other half: U+FFFD replaces each",
                count(self.lone_surrogates, "half of a surrogate pair", "halves of surrogate pairs")
            ));
        }
        if self.cut_conversations > 0 {
            let (are, they) = if self.cut_conversations == 1 { ("is", "it is") } else { ("are", "they are") };
            notes.push(format!(
                "{} {are} cut at the end of a turn, since {they} longer than data.sequenceLength",
                count(self.cut_conversations, "conversation", "conversations")
            ));
        }
        if self.unknown_roles > 0 {
            let has = if self.unknown_roles == 1 { "has" } else { "have" };
            let examples: Vec<String> = self.unknown_role_examples.iter().map(|role| format!("{role:?}")).collect();
            notes.push(format!(
                "{} {has} an unknown role, such as {} (known: {}): only messages with the role assistant are trained on",
                count(self.unknown_roles, "message", "messages"),
                examples.join(", "),
                KNOWN_ROLES.join(", ")
            ));
        }
        notes.extend(self.bad_records_note(files));
        notes
    }

    /// Returns the most frequent reason for which records are left out, and the number of all records that are left
    /// out. Returns `None` if no record is left out.
    pub(crate) fn most_frequent_reason(&self) -> Option<(BadRecordReason, u64)> {
        let mut by_reason: BTreeMap<BadRecordReason, u64> = BTreeMap::new();
        for BadRecords { reason, count, .. } in &self.bad_records {
            *by_reason.entry(*reason).or_default() += count;
        }
        let total = by_reason.values().sum();
        let (reason, _) = by_reason.into_iter().max_by_key(|(reason, count)| (*count, std::cmp::Reverse(*reason)))?;
        Some((reason, total))
    }

    fn bad_records_note(&self, files: &[&str]) -> Option<String> {
        let (mut by_reason, mut by_file) = (BTreeMap::new(), BTreeMap::new());
        for &BadRecords { file, reason, count } in &self.bad_records {
            *by_reason.entry(reason).or_insert(0) += count;
            *by_file.entry(file).or_insert(0) += count;
        }
        let total: u64 = by_reason.values().sum();
        let reasons: Vec<String> =
            by_reason.iter().map(|(reason, count)| format!("{count} {}", reason.description())).collect();
        let further = by_file.remove(&None);
        let file_count = |(file, count): (&Option<usize>, &u64)| {
            let name = file.and_then(|file| files.get(file)).unwrap_or(&"?");
            format!("{name} ({count})")
        };
        let mut in_files: Vec<String> = by_file.iter().map(file_count).collect();
        in_files.extend(further.map(|count| format!("further files ({count})")));
        (total > 0).then(|| {
            format!(
                "{} left out: {}; in {}",
                count(total, "bad record is", "bad records are"),
                reasons.join(", "),
                few(&in_files.iter().map(String::as_str).collect::<Vec<_>>())
            )
        })
    }
}

impl BadRecords {
    /// Returns the key by which the entries are ordered. Entries without a file index come last.
    fn key(&self) -> (bool, Option<usize>, BadRecordReason) {
        (self.file.is_none(), self.file, self.reason)
    }
}

/// Returns a number with its noun.
pub(crate) fn count(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token cache stores the findings. Findings without losses must be serialised to the bytes that older versions
    /// wrote.
    #[test]
    fn caches_without_losses_are_as_before() {
        let json = r#"{"specialAsText":{},"dropped":0,"droppedExamples":[],"unknown":0,"withoutTokens":0}"#;
        assert_eq!(serde_json::to_string(&Findings::default()).unwrap(), json);
        assert_eq!(serde_json::from_str::<Findings>(json).unwrap(), Findings::default());
    }

    #[test]
    fn bad_records_add_up_in_any_order() {
        let (mut one, mut other) = (Findings::default(), Findings::default());
        one.bad_record(3, BadRecordReason::Null);
        one.bad_record(1, BadRecordReason::NotJson);
        other.bad_record(1, BadRecordReason::Null);
        other.bad_record(3, BadRecordReason::Null);
        let [mut sum, mut reverse] = [one.clone(), other.clone()];
        sum.add(&other);
        reverse.add(&one);
        assert_eq!(sum, reverse);
        let note = "4 bad records are left out: 3 with null for text, 1 in invalid JSON; in b (2), d (2)";
        assert_eq!(sum.notes(&["a", "b", "c", "d"]), [note]);
    }

    #[test]
    fn the_size_of_the_findings_is_bounded() {
        let mut findings = Findings::default();
        (0..1000).rev().for_each(|file| findings.bad_record(file, BadRecordReason::Null));
        findings.bad_record(999, BadRecordReason::Null);
        assert_eq!(findings.bad_records.len(), MAX_BAD_RECORDS + 1);
        let json = serde_json::to_string(&findings).unwrap();
        assert_eq!(serde_json::from_str::<Findings>(&json).unwrap(), findings);
        let note = &findings.notes(&["name"; 1000])[0];
        assert_eq!(
            *note,
            "1001 bad records are left out: 1001 with null for text; in name (1), name (1), name (1) and 98 more"
        );
    }
}
