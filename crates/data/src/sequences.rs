//! Divides a stream of tokens into sequences.

use crate::stream::TokenStream;

/// The inputs `start..start + length` of a stream. The target of each input is the token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRange {
    pub(crate) start: u64,
    pub(crate) length: usize,
}

/// The rule by which a stream becomes sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Documents are joined, and cut into sequences of exactly `length` inputs. A document may continue in the next
    /// sequence.
    Packed,
    /// Each sequence is one document, or a part of one longer document.
    Unpacked,
    /// Each sequence holds as many whole documents as fit, in their order.
    WholeDocuments,
}

/// All sequences of a stream.
pub(crate) struct Sequences {
    pub(crate) stream: TokenStream,
    /// The number of sequences.
    pub(crate) count: u64,
    /// The largest number of inputs of a sequence.
    length: usize,
    cut: SequenceStarts,
}

enum SequenceStarts {
    /// Sequence `i` holds the `length` inputs that begin at input `i * length`. The tokens after the last full sequence
    /// are dropped.
    Packed,
    /// Each document is split into consecutive windows of at most `length` inputs, and each window is a sequence. The
    /// last token of a document is never an input, because it has no target.
    Unpacked {
        /// The number of windows before each document, followed by the total number of windows.
        windows_before: Vec<u64>,
    },
    /// Each sequence holds whole documents. The last token of the last document of a sequence is not an input.
    WholeDocuments {
        /// The first document of each sequence, followed by the number of documents.
        first: Vec<u64>,
    },
}

impl Sequences {
    /// Splits `stream` into sequences of at most `length` inputs.
    pub(crate) fn new(stream: TokenStream, length: usize, cut: Packing) -> Sequences {
        let cut = match cut {
            Packing::Packed => SequenceStarts::Packed,
            Packing::Unpacked => cut_per_document(&stream, length),
            Packing::WholeDocuments => cut_between_documents(&stream, length),
        };
        let count = match &cut {
            SequenceStarts::Packed => stream.tokens().saturating_sub(1) / length as u64,
            SequenceStarts::Unpacked { windows_before } => windows_before.last().copied().unwrap_or(0),
            SequenceStarts::WholeDocuments { first } => first.len() as u64 - 1,
        };
        Sequences { stream, count, length, cut }
    }

    /// Returns the inputs of sequence `index`.
    pub(crate) fn token_range(&self, index: u64) -> TokenRange {
        match &self.cut {
            SequenceStarts::Packed => TokenRange { start: index * self.length as u64, length: self.length },
            SequenceStarts::Unpacked { windows_before } => {
                // The sequence is in the last document that has at most `index` windows before it. Documents without
                // windows are skipped.
                let document = windows_before.partition_point(|&before| before <= index) - 1;
                let number = document as u64;
                let start = self.stream.start(number) + (index - windows_before[document]) * self.length as u64;
                let last = self.stream.start(number + 1) - 1;
                TokenRange { start, length: ((last - start) as usize).min(self.length) }
            }
            SequenceStarts::WholeDocuments { first } => {
                let [start, end] = [index, index + 1].map(|index| self.stream.start(first[index as usize]));
                TokenRange { start, length: (end - start).saturating_sub(1) as usize }
            }
        }
    }
}

/// Returns the number of sequences of a document that is not packed. The last token of the document is not an input.
pub(crate) fn sequences_of_document(tokens: u64, length: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(length)
}

/// Whether a document of `tokens` tokens fits into a sequence of whole documents that has `filled` tokens.
pub(crate) fn has_room(filled: u64, tokens: u64, length: u64) -> bool {
    filled + tokens <= length + 1
}

fn cut_between_documents(stream: &TokenStream, length: usize) -> SequenceStarts {
    let mut first = Vec::new();
    let (mut start, mut filled) = (0, 0);
    for document in 0..stream.documents() {
        let next = stream.start(document + 1);
        let tokens = next - start;
        if document == 0 || !has_room(filled, tokens, length as u64) {
            first.push(document);
            filled = 0;
        }
        filled += tokens;
        start = next;
    }
    first.push(stream.documents());
    SequenceStarts::WholeDocuments { first }
}

fn cut_per_document(stream: &TokenStream, length: usize) -> SequenceStarts {
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
    SequenceStarts::Unpacked { windows_before }
}
