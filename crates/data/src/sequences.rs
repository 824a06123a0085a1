//! The division of a stream of tokens into sequences.

use crate::stream::TokenStream;

/// The inputs `start..start + length` of a stream. The target of each input is the token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRange {
    pub(crate) start: u64,
    pub(crate) length: usize,
}

/// All sequences of a stream.
pub(crate) struct Sequences {
    pub(crate) stream: TokenStream,
    /// Number of sequences.
    pub(crate) count: u64,
    /// The largest number of inputs.
    length: usize,
    cut: SequenceCut,
}

enum SequenceCut {
    /// Sequence i holds the inputs from i x length on. The remainder at the end is dropped.
    Packed,
    /// Each document is split into consecutive windows. Its last token is never an input, because it has no target.
    Unpacked {
        /// The number of windows before each document, followed by the total number of windows.
        windows_before: Vec<u64>,
    },
}

impl Sequences {
    /// Splits `stream` into sequences of `length` inputs, packed or document by document.
    pub(crate) fn new(stream: TokenStream, length: usize, packing: bool) -> Sequences {
        let cut = if packing { SequenceCut::Packed } else { cut_per_document(&stream, length) };
        let count = match &cut {
            SequenceCut::Packed => stream.tokens().saturating_sub(1) / length as u64,
            SequenceCut::Unpacked { windows_before } => windows_before.last().copied().unwrap_or(0),
        };
        Sequences { stream, count, length, cut }
    }

    /// The inputs of sequence `index`.
    pub(crate) fn token_range(&self, index: u64) -> TokenRange {
        match &self.cut {
            SequenceCut::Packed => TokenRange { start: index * self.length as u64, length: self.length },
            SequenceCut::Unpacked { windows_before } => {
                // The last document with at most `index` windows before it. This skips documents without windows.
                let document = windows_before.partition_point(|&before| before <= index) - 1;
                let number = document as u64;
                let start = self.stream.start(number) + (index - windows_before[document]) * self.length as u64;
                let last = self.stream.start(number + 1) - 1;
                TokenRange { start, length: ((last - start) as usize).min(self.length) }
            }
        }
    }
}

/// The number of sequences of a document that is not packed with others. Its last token is no input.
pub(crate) fn sequences_of_document(tokens: u64, length: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(length)
}

fn cut_per_document(stream: &TokenStream, length: usize) -> SequenceCut {
    let mut windows_before = Vec::with_capacity(stream.documents() as usize + 1);
    let mut windows = 0;
    let mut start = 0;
    for document in 0..stream.documents() {
        windows_before.push(windows);
        let next = stream.start(document + 1);
        windows += sequences_of_document(next - start, length as u64);
        start = next;
    }
    windows_before.push(windows);
    SequenceCut::Unpacked { windows_before }
}
