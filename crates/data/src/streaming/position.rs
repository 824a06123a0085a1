//! Defines positions in the stream of a source, and the identities of the stream's documents. Checkpoints record the
//! positions. The documents of a stream have no index, because counting the documents would require reading the whole
//! corpus.

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
    /// The number of tokens between `read` and the window's beginning.
    pub(super) skip: u64,
    /// The counts of documents up to `read`.
    pub(super) counts: DocumentCounts,
    /// The digest of the window that begins here, if training has read the window.
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
    /// Fails with `WindowDiffers` if the digests differ.
    pub(super) fn check(&self, digest: &str) -> Result<(), DataError> {
        match &self.digest {
            Some(expected) if expected != digest => Err(DataError::WindowDiffers { window: self.window }),
            _ => Ok(()),
        }
    }

    /// Returns the counts of the documents that the stream has read before this position.
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
    /// The offset, see [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) offset: u64,
    /// The record, see [`Cursor`](crate::corpus::Cursor); 0 for the beginning of the block.
    pub(super) record: u64,
    /// Whether the position is within a training document, whose tokens before the position are already in the stream.
    pub(super) inside: bool,
    /// The number of the document's tokens before the position.
    #[serde(default)]
    pub(super) tokens: u64,
}

/// The numbers of documents that a stream has read.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DocumentCounts {
    /// The number of documents to train on.
    pub documents: u64,
    /// The number of documents that are held out.
    #[serde(default)]
    pub held_out: u64,
    /// The number of documents without tokens, which are left out.
    #[serde(default)]
    pub empty: u64,
    /// The findings about the documents' texts, and the records that are left out.
    #[serde(default)]
    pub findings: Findings,
}

impl DocumentCounts {
    /// Returns the sum of the counts of several sources.
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

    /// Returns the numbers as a sentence, such as "1200 documents read, 3 empty".
    pub fn sentence(&self) -> String {
        let mut parts = vec![format!("{} read", count(self.documents, "document", "documents"))];
        parts.extend((self.held_out > 0).then(|| format!("{} held out", self.held_out)));
        parts.extend((self.empty > 0).then(|| format!("{} empty", self.empty)));
        parts.join(", ")
    }
}

impl ReadPosition {
    /// Returns the position as a cursor in the file of its block, which has the index `file`.
    pub(super) fn cursor(self, file: usize) -> Cursor {
        Cursor { file, offset: self.offset, record: self.record }
    }
}

/// The number of bits of a document's number that hold the record. The higher bits hold the file.
const RECORD_BITS: u32 = 40;

/// A document of a stream: a record of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DocumentId {
    /// The index of the file in the corpus, below 2^24.
    pub(crate) file: usize,
    /// The number, from 1, of the document's line, element or row in the file, or of the document in a file of token
    /// ids.
    pub(crate) record: u64,
}

impl DocumentId {
    /// Returns the document in a record of a file, or `None` if the number of the record needs more than `RECORD_BITS`
    /// bits.
    pub(crate) fn new(file: usize, record: u64) -> Option<DocumentId> {
        (record >> RECORD_BITS == 0).then_some(DocumentId { file, record })
    }

    /// Returns the document as a number, which windows store.
    pub(crate) fn number(self) -> u64 {
        (self.file as u64) << RECORD_BITS | self.record
    }

    /// Returns the document that `number` identifies.
    pub(crate) fn of_number(number: u64) -> DocumentId {
        DocumentId { file: (number >> RECORD_BITS) as usize, record: number & ((1 << RECORD_BITS) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_one_document(file in 0usize..1 << 24, record in 0u64..1 << 40) {
            let id = DocumentId { file, record };
            prop_assert_eq!(DocumentId::of_number(id.number()), id);
        }
    }
}
