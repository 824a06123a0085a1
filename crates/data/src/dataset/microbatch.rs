//! Plans of microbatches, and their token ids.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Dataset;
use crate::sequences::{Sequences, TokenRange};

/// Target that the loss ignores, with the value of PyTorch's `ignore_index`. Padding has this target, and so does the
/// last token of a document in a packed row.
pub const IGNORE_INDEX: i64 = -100;

/// A sequence of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequenceId {
    /// Index of the stream: below the number of sources, the index of the source.
    pub(super) stream: usize,
    /// Index among the sequences of the stream.
    pub(super) index: u64,
}

/// Shape of a microbatch, and the document boundaries for its attention mask.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchLayout {
    /// Number of sequences.
    pub rows: usize,
    /// Tokens in a row, padding included.
    pub length: usize,
    /// For each row, the offsets at which a document starts, except offset 0. Empty for a row that holds one document.
    #[serde(rename = "documents")]
    pub document_starts: Vec<Vec<u32>>,
}

/// The microbatches of one step, or of one held-out set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The layout of each microbatch.
    pub layouts: Vec<MicrobatchLayout>,
    /// Number of targets over all microbatches that aren't [`IGNORE_INDEX`]: the divisor of the loss.
    pub target_count: u64,
    /// Per microbatch, the sequence in each row.
    pub(super) sequences: Vec<Vec<SequenceId>>,
}

/// The source of a row of a step's microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSource {
    /// Index of the source.
    pub source: usize,
    /// Number of targets in the row that aren't [`IGNORE_INDEX`].
    pub targets: u64,
}

/// Inputs and targets of a microbatch, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// Shape and document boundaries.
    pub layout: MicrobatchLayout,
    /// Token ids, `[rows, length]`.
    pub inputs: Vec<i64>,
    /// `[rows, length]`: the token after each input, or [`IGNORE_INDEX`].
    pub targets: Vec<i64>,
}

impl Dataset {
    /// Microbatch `index` of `plan`.
    pub fn microbatch(&self, plan: &BatchPlan, index: usize) -> Microbatch {
        let layout = plan.layouts[index].clone();
        let mut inputs = vec![self.pad_token_id; layout.rows * layout.length];
        let mut targets = vec![IGNORE_INDEX; layout.rows * layout.length];
        for (row, &sequence) in plan.sequences[index].iter().enumerate() {
            let first = row * layout.length;
            let range = self.token_range(sequence);
            let ids = self.streams[sequence.stream].stream.ids(&self.token_ids, range.start, range.length + 1);
            let ids: Vec<i64> = ids.into_iter().map(i64::from).collect();
            inputs[first..first + range.length].copy_from_slice(&ids[..range.length]);
            targets[first..first + range.length].copy_from_slice(&ids[1..]);
            for boundary in self.boundaries(sequence, range) {
                targets[first + boundary as usize - 1] = IGNORE_INDEX;
            }
            for left_out in self.left_out(sequence, range) {
                targets[first + left_out.start..first + left_out.end].fill(IGNORE_INDEX);
            }
        }
        Microbatch { layout, inputs, targets }
    }

    /// The sources of the rows of `microbatch`, which is number `index` of a step's `plan`; empty if the corpus has one
    /// source.
    pub fn row_sources(&self, plan: &BatchPlan, index: usize, microbatch: &Microbatch) -> Vec<RowSource> {
        if self.sources.len() == 1 {
            return Vec::new();
        }
        let rows = microbatch.targets.chunks(microbatch.layout.length.max(1));
        let row = |(sequence, targets): (&SequenceId, &[i64])| {
            let targets = targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u64;
            RowSource { source: sequence.stream, targets }
        };
        plan.sequences[index].iter().zip(rows).map(row).collect()
    }

    pub(super) fn plan(&self, sequences: Vec<Vec<SequenceId>>) -> BatchPlan {
        let mut target_count = 0;
        let layouts = sequences.iter().map(|rows| {
            let ranges: Vec<TokenRange> = rows.iter().map(|&sequence| self.token_range(sequence)).collect();
            let length = ranges.iter().map(|range| range.length).max().unwrap_or(0);
            let document_starts = rows.iter().zip(&ranges).map(|(&sequence, &range)| {
                let mut boundaries: Vec<u32> = self.boundaries(sequence, range).collect();
                let left_out: usize = self.left_out(sequence, range).iter().map(ExactSizeIterator::len).sum();
                target_count += (range.length - boundaries.len() - left_out) as u64;
                // A document that starts right after the row shortens its targets, not its attention.
                boundaries.retain(|&offset| (offset as usize) < range.length);
                boundaries
            });
            MicrobatchLayout { rows: rows.len(), length, document_starts: document_starts.collect() }
        });
        BatchPlan { layouts: layouts.collect(), target_count, sequences }
    }

    pub(super) fn sequences_of(&self, sequence: SequenceId) -> &Sequences {
        &self.streams[sequence.stream]
    }

    pub(super) fn token_range(&self, sequence: SequenceId) -> TokenRange {
        self.sequences_of(sequence).token_range(sequence.index)
    }

    /// The starts of documents among the targets of `range`, as offsets from its first input: 1 to `length`.
    fn boundaries(&self, sequence: SequenceId, range: TokenRange) -> impl Iterator<Item = u32> + '_ {
        let last = range.start + range.length as u64;
        let starts = self.sequences_of(sequence).stream.starts_within(range.start + 1, last);
        starts.map(move |start| (start - range.start) as u32)
    }

    /// The inputs of a sequence whose targets belong to a document that training leaves out, as offsets from the first
    /// input.
    fn left_out(&self, sequence: SequenceId, range: TokenRange) -> Vec<Range<usize>> {
        let is_training = self.sources.get(sequence.stream).is_some_and(|source| sequence.index < source.sequences);
        if self.without.is_empty() || !is_training {
            return Vec::new();
        }
        let stream = &self.sequences_of(sequence).stream;
        let (start, end) = (range.start, range.start + range.length as u64);
        let of_range = stream.containing(start)..=stream.containing(end);
        // no input has a document's first token as its target
        let inputs = |document: u64| {
            let [first, next] = [document, document + 1].map(|index| stream.start(index));
            (first.max(start) - start) as usize..((next - 1).min(end) - start) as usize
        };
        of_range.filter(|&document| self.without.contains(&stream.in_corpus(document).0)).map(inputs).collect()
    }
}
