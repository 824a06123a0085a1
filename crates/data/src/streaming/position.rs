//! Positions in the stream of a source. Checkpoints record them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::corpus::{BadRecordReason, Cursor};
use crate::findings::count;

/// The beginning of a window.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StreamPosition {
    /// The number of the window, from 0.
    pub(super) window: u64,
    /// A position before it, or its own, at which reading can start.
    pub(super) read: ReadPosition,
    /// Tokens from there to the window.
    pub(super) skip: u64,
    /// The documents up to `read`.
    pub(super) counts: DocumentCounts,
}

impl StreamPosition {
    /// The documents that the stream has read before this position.
    pub fn counts(&self) -> &DocumentCounts {
        &self.counts
    }
}

/// A position in the blocks of a source, between two pieces of its text.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadPosition {
    pub(super) epoch: u64,
    /// The number of the block in the order of the epoch.
    pub(super) block: u64,
    /// As in [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) offset: u64,
    /// As in [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) record: u64,
    /// Whether the position is within a document. Its tokens before the position are in the stream.
    pub(super) inside: bool,
    /// The number of these tokens.
    #[serde(default)]
    pub(super) tokens: u64,
}

/// Numbers of documents that a stream has read.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DocumentCounts {
    /// Documents to train on.
    pub documents: u64,
    /// Documents that are held out.
    #[serde(default)]
    pub held_out: u64,
    /// Documents without tokens, which are left out.
    #[serde(default)]
    pub empty: u64,
    /// Records that are left out, by the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) bad_records: BTreeMap<BadRecordReason, u64>,
    /// Halves of surrogate pairs, which U+FFFD replaces.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) lone_surrogates: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl DocumentCounts {
    /// The documents of several sources together.
    pub fn sum<'a>(counts: impl Iterator<Item = &'a DocumentCounts>) -> DocumentCounts {
        let mut sum = DocumentCounts::default();
        for counts in counts {
            sum.documents += counts.documents;
            sum.held_out += counts.held_out;
            sum.empty += counts.empty;
            sum.lone_surrogates += counts.lone_surrogates;
            for (reason, count) in &counts.bad_records {
                *sum.bad_records.entry(*reason).or_default() += count;
            }
        }
        sum
    }

    /// A sentence for people, such as "1200 documents read, 3 empty, 2 bad records left out (2 with null for
    /// text)".
    pub fn sentence(&self) -> String {
        let mut parts = vec![format!("{} read", count(self.documents, "document", "documents"))];
        parts.extend((self.held_out > 0).then(|| format!("{} held out", self.held_out)));
        parts.extend((self.empty > 0).then(|| format!("{} empty", self.empty)));
        let bad: u64 = self.bad_records.values().sum();
        let reasons = self.bad_records.iter().map(|(reason, count)| format!("{count} {}", reason.description()));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let records = count(bad, "bad record", "bad records");
        parts.extend((bad > 0).then(|| format!("{records} left out ({reasons})")));
        let halves = count(self.lone_surrogates, "half of a surrogate pair", "halves of surrogate pairs");
        parts.extend((self.lone_surrogates > 0).then(|| format!("{halves} replaced by U+FFFD")));
        parts.join(", ")
    }
}

impl ReadPosition {
    /// The position as a cursor in the file with the index `file`, which has its block.
    pub(super) fn cursor(self, file: usize) -> Cursor {
        Cursor { file, offset: self.offset, record: self.record }
    }
}
