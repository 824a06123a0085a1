//! Positions in the stream of a source. Checkpoints record them.

use serde::{Deserialize, Serialize};

use crate::corpus::Cursor;
use crate::error::DataError;
use crate::findings::{Findings, count};

/// The beginning of a window.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StreamPosition {
    /// The number of the window, from 0.
    pub(super) window: u64,
    /// A position, at or before the window's beginning, at which reading can start.
    pub(super) read: ReadPosition,
    /// Tokens between `read` and the window.
    pub(super) skip: u64,
    /// The counts of documents up to `read`.
    pub(super) counts: DocumentCounts,
    /// The digest of the window that begins here, if training has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<String>,
}

impl StreamPosition {
    /// Whether both positions are equal, apart from their digests.
    pub(super) fn is_at(&self, other: &StreamPosition) -> bool {
        (self.window, self.read, self.skip, &self.counts) == (other.window, other.read, other.skip, &other.counts)
    }

    /// Compares the digest of the window that begins here with the digest that a checkpoint recorded.
    ///
    /// # Errors
    /// `WindowDiffers` if the digests differ.
    pub(super) fn check(&self, digest: &str) -> Result<(), DataError> {
        match &self.digest {
            Some(expected) if expected != digest => Err(DataError::WindowDiffers { window: self.window }),
            _ => Ok(()),
        }
    }

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
    /// See [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) offset: u64,
    /// See [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) record: u64,
    /// Whether the position is within a document whose tokens before the position are in the stream.
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
    /// The findings of their texts, and the records that are left out.
    #[serde(default)]
    pub findings: Findings,
}

impl DocumentCounts {
    /// The sum of the counts of several sources.
    pub fn sum<'a>(counts: impl Iterator<Item = &'a DocumentCounts>) -> DocumentCounts {
        let mut sum = DocumentCounts::default();
        for counts in counts {
            sum.documents += counts.documents;
            sum.held_out += counts.held_out;
            sum.empty += counts.empty;
            sum.findings.add(&counts.findings);
        }
        sum
    }

    /// The numbers for people, such as "1200 documents read, 3 empty".
    pub fn sentence(&self) -> String {
        let mut parts = vec![format!("{} read", count(self.documents, "document", "documents"))];
        parts.extend((self.held_out > 0).then(|| format!("{} held out", self.held_out)));
        parts.extend((self.empty > 0).then(|| format!("{} empty", self.empty)));
        parts.join(", ")
    }
}

impl ReadPosition {
    /// The position as a cursor in the file of its block, which has the index `file`.
    pub(super) fn cursor(self, file: usize) -> Cursor {
        Cursor { file, offset: self.offset, record: self.record }
    }
}
