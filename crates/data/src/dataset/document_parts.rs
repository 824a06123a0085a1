//! The parts of documents in the microbatches of a plan.

use std::ops::Range;

use super::Dataset;
use super::microbatch::{BatchPlan, IGNORE_INDEX, Microbatch};

/// The part of a document in a row of a microbatch. The part attends to nothing else, so it can be computed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentPart {
    /// The document: its index among the documents of the corpus that have tokens, or its number in a streamed corpus.
    pub document: u64,
    /// The positions of the inputs among the document's tokens, including the token that begins the document.
    pub tokens: Range<u64>,
    /// Position of the first input in its row.
    pub position: usize,
    /// Token ids.
    pub inputs: Vec<i64>,
    /// The token after each input, or [`IGNORE_INDEX`]. At least one target is a token.
    pub targets: Vec<i64>,
}

impl Dataset {
    /// The parts of documents that have targets in `plan`, in its order: the rows of its microbatches from the first to
    /// the last, and each row from left to right.
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
}
