//! The division of the token stream into sequences, and the selection of held-out ones.

use std::ops::Range;

use crate::config::DataConfig;
use crate::error::DataError;
use crate::mapped::DocumentOffsets;

/// The inputs `start..start + length` of the token stream. The target of each input is the token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRange {
    pub(crate) start: u64,
    pub(crate) length: usize,
}

/// All sequences of a source: first the ones to train on, then the held-out ones.
pub(crate) struct Sequences {
    cut: SequenceCut,
    pub(crate) training: u64,
    pub(crate) held_out: u64,
}

enum SequenceCut {
    /// Sequence i holds `length` inputs from `start` + i x `length` on. The remainder at the end is dropped.
    Packed { start: u64, length: usize },
    /// Each document is split into consecutive windows. Its last token is never an input, because it has no target.
    Unpacked {
        length: usize,
        /// Index of the first document.
        first: u64,
        /// The number of windows before each document, followed by the total number of windows.
        windows_before: Vec<u64>,
    },
}

impl Sequences {
    /// Splits the documents `range` of `documents`, which are those of the source `name`, as `config` says.
    ///
    /// # Errors
    /// `TooShort` if no sequence is left to train on; `Invalid` for a length of 0 or a fraction outside 0..1.
    pub(crate) fn new(
        config: &DataConfig,
        name: &str,
        documents: &DocumentOffsets,
        range: Range<u64>,
    ) -> Result<Sequences, DataError> {
        let (length, fraction) = (config.sequence_length, config.evaluation_fraction);
        if length == 0 {
            return Err(DataError::Invalid { problem: "data.sequenceLength is 0: it must be at least 1".into() });
        }
        if !(0.0..1.0).contains(&fraction) {
            return Err(DataError::Invalid {
                problem: format!("data.evaluation.fraction is {fraction}: it must be at least 0 and below 1"),
            });
        }
        let start = documents.start(range.start);
        let tokens = documents.start(range.end) - start;
        let cut = match config.packing {
            true => SequenceCut::Packed { start, length },
            false => cut_per_document(length, documents, range.clone()),
        };
        let sequences = match &cut {
            SequenceCut::Packed { length, .. } => tokens.saturating_sub(1) / *length as u64,
            SequenceCut::Unpacked { windows_before, .. } => windows_before.last().copied().unwrap_or(0),
        };
        let held_out = if fraction > 0.0 { ((sequences as f64 * fraction) as u64).max(1) } else { 0 };
        if sequences <= held_out {
            return Err(DataError::TooShort {
                subject: if name.is_empty() { "the corpus".to_owned() } else { format!("the source {name}") },
                tokens,
                documents: range.end - range.start,
                sequences,
                sequence_length: length,
                held_out: held_out.min(sequences),
            });
        }
        Ok(Sequences { cut, training: sequences - held_out, held_out })
    }

    /// Tokens before the held-out sequences; all tokens if nothing is held out.
    pub(crate) fn training_tokens(&self, documents: &DocumentOffsets, range: &Range<u64>) -> u64 {
        let end = match self.held_out {
            0 => documents.start(range.end),
            _ => self.token_range(self.training, documents).start,
        };
        end - documents.start(range.start)
    }

    /// The inputs of sequence `index`.
    pub(crate) fn token_range(&self, index: u64, documents: &DocumentOffsets) -> TokenRange {
        match &self.cut {
            SequenceCut::Packed { start, length } => {
                TokenRange { start: start + index * *length as u64, length: *length }
            }
            SequenceCut::Unpacked { length, first, windows_before } => {
                // The last document with at most `index` windows before it. This skips documents without windows.
                let document = windows_before.partition_point(|&before| before <= index) - 1;
                let number = first + document as u64;
                let start = documents.start(number) + (index - windows_before[document]) * *length as u64;
                let last = documents.start(number + 1) - 1;
                TokenRange { start, length: ((last - start) as usize).min(*length) }
            }
        }
    }
}

fn cut_per_document(length: usize, documents: &DocumentOffsets, range: Range<u64>) -> SequenceCut {
    let first = range.start;
    let mut windows_before = Vec::with_capacity((range.end - first) as usize + 1);
    let mut windows = 0;
    let mut start = documents.start(first);
    for document in range {
        windows_before.push(windows);
        let next = documents.start(document + 1);
        windows += (next - start).saturating_sub(1).div_ceil(length as u64);
        start = next;
    }
    windows_before.push(windows);
    SequenceCut::Unpacked { length, first, windows_before }
}
