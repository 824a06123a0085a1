//! Plans of microbatches, the token ids of microbatches, and the parts of documents in microbatches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Dataset;
use crate::sequences::{Sequences, TokenRange};

/// The target that the loss ignores, with the value of PyTorch's `ignore_index`. Padding has this target, as does the
/// last token of a document in a packed row. In a conversation, an input has this target if the assistant did not write
/// the next token.
pub const IGNORE_INDEX: i64 = -100;

/// The sequence in a row of a microbatch.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) sequences: Arc<Sequences>,
    /// The index of the sequence in `sequences`.
    pub(super) index: u64,
    /// The index of the source; `None` for a held-out sequence.
    pub(super) source: Option<usize>,
}

/// The shape of a microbatch, and the document boundaries for its attention mask.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchLayout {
    /// The number of rows. Each row holds one sequence.
    pub rows: usize,
    /// The number of tokens in a row, including padding.
    pub length: usize,
    /// For each row, the offsets at which documents start, without offset 0. The list is empty for a row with one
    /// document.
    #[serde(rename = "documents")]
    pub document_starts: Vec<Vec<u32>>,
}

/// The microbatches of one step, or of one held-out set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The layout of each microbatch.
    pub layouts: Vec<MicrobatchLayout>,
    /// The number of targets that aren't [`IGNORE_INDEX`], over all microbatches. The sum of the losses is divided by
    /// this number.
    pub target_count: u64,
    /// The rows of each microbatch.
    pub(super) rows: Vec<Vec<Row>>,
}

/// The source of a row of a step's microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSource {
    /// The index of the source.
    pub source: usize,
    /// The number of targets in the row that aren't [`IGNORE_INDEX`].
    pub targets: u64,
}

/// The inputs and targets of a microbatch, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// The shape and the document boundaries.
    pub layout: MicrobatchLayout,
    /// The token ids, `[rows, length]`.
    pub inputs: Vec<i64>,
    /// The token after each input, or [`IGNORE_INDEX`], `[rows, length]`.
    pub targets: Vec<i64>,
}

/// The part of a document in a row of a microbatch. The tokens of the part attend only to each other, so the part can
/// be computed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentPart {
    /// The index of the document among the documents of the corpus that have tokens, or the document's number in a
    /// streamed corpus.
    pub document: u64,
    /// The positions of the inputs among the document's tokens, which include the token that begins the document.
    pub tokens: Range<u64>,
    /// The position of the first input in its row.
    pub position: usize,
    /// The token ids of the inputs.
    pub inputs: Vec<i64>,
    /// The token after each input, or [`IGNORE_INDEX`]. At least one target is a token.
    pub targets: Vec<i64>,
}

impl Dataset {
    /// Returns microbatch `index` of `plan`.
    pub fn microbatch(&self, plan: &BatchPlan, index: usize) -> Microbatch {
        let layout = plan.layouts[index].clone();
        let mut inputs = vec![self.pad_token_id; layout.rows * layout.length];
        let mut targets = vec![IGNORE_INDEX; layout.rows * layout.length];
        for (number, row) in plan.rows[index].iter().enumerate() {
            let first = number * layout.length;
            let range = row.token_range();
            let ids = row.sequences.stream.ids(range.start, range.length + 1);
            let ids: Vec<i64> = ids.into_iter().map(i64::from).collect();
            inputs[first..first + range.length].copy_from_slice(&ids[..range.length]);
            targets[first..first + range.length].copy_from_slice(&ids[1..]);
            for boundary in row.boundaries(range) {
                targets[first + boundary as usize - 1] = IGNORE_INDEX;
            }
            for left_out in self.left_out(row, range) {
                targets[first + left_out.start..first + left_out.end].fill(IGNORE_INDEX);
            }
        }
        Microbatch { layout, inputs, targets }
    }

    /// Returns the source of each row of `microbatch`, which is microbatch `index` of a step's `plan`. The list is
    /// empty if the corpus has one source.
    pub fn row_sources(&self, plan: &BatchPlan, index: usize, microbatch: &Microbatch) -> Vec<RowSource> {
        if self.sources.len() == 1 {
            return Vec::new();
        }
        let rows = microbatch.targets.chunks(microbatch.layout.length.max(1));
        let row_source = |(row, targets): (&Row, &[i64])| {
            let targets = targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u64;
            row.source.map(|source| RowSource { source, targets })
        };
        plan.rows[index].iter().zip(rows).filter_map(row_source).collect()
    }

    /// Returns the parts of documents that have targets in `plan`. The parts are in the order of the microbatches, of
    /// the rows of a microbatch, and of the tokens of a row.
    pub fn document_parts(&self, plan: &BatchPlan) -> Vec<DocumentPart> {
        let mut parts = Vec::new();
        for index in 0..plan.layouts.len() {
            let Microbatch { layout, inputs, targets } = self.microbatch(plan, index);
            for (number, row) in plan.rows[index].iter().enumerate() {
                let (stream, range) = (&row.sequences.stream, row.token_range());
                let first = number * layout.length;
                let bounds = |offsets: &[u32]| offsets.iter().map(|&offset| offset as usize).collect::<Vec<_>>();
                let starts = [vec![0], bounds(&layout.document_starts[number]), vec![range.length]].concat();
                for (of_stream, bounds) in (stream.containing(range.start)..).zip(starts.windows(2)) {
                    let in_row = first + bounds[0]..first + bounds[1];
                    if targets[in_row.clone()].iter().all(|&target| target == IGNORE_INDEX) {
                        continue;
                    }
                    let (document, before) = stream.in_corpus(of_stream);
                    let begin = before + range.start + bounds[0] as u64 - stream.start(of_stream);
                    parts.push(DocumentPart {
                        document,
                        tokens: begin..begin + in_row.len() as u64,
                        position: bounds[0],
                        inputs: inputs[in_row.clone()].to_vec(),
                        targets: targets[in_row].to_vec(),
                    });
                }
            }
        }
        parts
    }

    pub(super) fn plan(&self, rows: Vec<Vec<Row>>) -> BatchPlan {
        let mut target_count = 0;
        let layouts = rows.iter().map(|rows| {
            let ranges: Vec<TokenRange> = rows.iter().map(Row::token_range).collect();
            let length = ranges.iter().map(|range| range.length).max().unwrap_or(0);
            let document_starts = rows.iter().zip(&ranges).map(|(row, &range)| {
                let mut boundaries: Vec<u32> = row.boundaries(range).collect();
                let left_out: usize = self.left_out(row, range).iter().map(ExactSizeIterator::len).sum();
                target_count += (range.length - boundaries.len() - left_out) as u64;
                // A document that starts right after the row removes the row's last target, but has no input in the
                // row.
                boundaries.retain(|&offset| (offset as usize) < range.length);
                boundaries
            });
            MicrobatchLayout { rows: rows.len(), length, document_starts: document_starts.collect() }
        });
        BatchPlan { layouts: layouts.collect(), target_count, rows }
    }

    /// Returns the inputs in a row for which the loss leaves out the target, as ranges of offsets from the first input.
    /// A target is left out if training leaves out its document, or if the loss mask excludes it. The input directly
    /// before the start of a document is not returned, because the callers exclude its target themselves.
    fn left_out(&self, row: &Row, range: TokenRange) -> Vec<Range<usize>> {
        let positions = self.tokens_of_left_out_documents(row, range);
        let Some(mut trained) = row.sequences.stream.trained(range.start + 1, range.length) else {
            return positions;
        };
        positions.into_iter().for_each(|inputs| trained[inputs].fill(false));
        for boundary in row.boundaries(range) {
            trained[boundary as usize - 1] = true;
        }
        let mut start = 0;
        let runs = trained.chunk_by(|one, other| one == other).map(|run| {
            start += run.len();
            (run[0], start - run.len()..start)
        });
        runs.filter(|(trained, _)| !trained).map(|(_, inputs)| inputs).collect()
    }

    fn tokens_of_left_out_documents(&self, row: &Row, range: TokenRange) -> Vec<Range<usize>> {
        if self.without.is_empty() || row.source.is_none() {
            return Vec::new();
        }
        let stream = &row.sequences.stream;
        let (start, end) = (range.start, range.start + range.length as u64);
        let range_documents = stream.containing(start)..=stream.containing(end);
        // no input has a document's first token as its target
        let inputs = |document: u64| {
            let [first, next] = [document, document + 1].map(|index| stream.start(index));
            (first.max(start) - start) as usize..((next - 1).min(end) - start) as usize
        };
        range_documents.filter(|&document| self.without.contains(&stream.in_corpus(document).0)).map(inputs).collect()
    }
}

impl Row {
    /// Returns the range of the row's inputs.
    pub(super) fn token_range(&self) -> TokenRange {
        self.sequences.token_range(self.index)
    }

    /// Returns the starts of documents among the targets of `range`, as offsets from the first input of `range`: 1 to
    /// `length`.
    fn boundaries(&self, range: TokenRange) -> impl Iterator<Item = u32> + '_ {
        let last = range.start + range.length as u64;
        let starts = self.sequences.stream.starts_within(range.start + 1, last);
        starts.map(move |start| (start - range.start) as u32)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        (self.source, self.index, self.token_range()) == (other.source, other.index, other.token_range())
    }
}

impl Eq for Row {}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {} of {:?}", self.index, self.source)
    }
}
