//! The identity of a document in a stream. The documents of a stream have no index, because only a whole reading of the
//! corpus could count them.

/// Bits of a document's number that hold the record. The bits above them hold the file.
const RECORD_BITS: u32 = 40;

/// A document of a stream: a record of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DocumentId {
    /// Index of the file in the corpus, below 2^24.
    pub(crate) file: usize,
    /// Number of the document's line, element, row or token document in the file, from 1.
    pub(crate) record: u64,
}

impl DocumentId {
    /// The document with this record; `None` if the record needs more than `RECORD_BITS`.
    pub(crate) fn new(file: usize, record: u64) -> Option<DocumentId> {
        (record >> RECORD_BITS == 0).then_some(DocumentId { file, record })
    }

    /// The document as a number, which windows store.
    pub(crate) fn number(self) -> u64 {
        (self.file as u64) << RECORD_BITS | self.record
    }

    /// The document with this number.
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
