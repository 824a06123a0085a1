//! The tokens of a stream from its current window on, and their division into windows. A window has a fixed number of
//! sequences. The next window begins where the last sequence ends, which may be within a document.

use std::collections::VecDeque;

use super::document_id::DocumentId;
use super::position::{DocumentCounts, ReadPosition, StreamPosition};
use crate::sequences::{Cut as SequenceCut, has_room, sequences_of_document};

/// The size of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowSize {
    pub(super) sequences: u64,
    /// The largest number of inputs of a sequence.
    pub(super) length: u64,
    pub(super) cut: SequenceCut,
}

/// A finished window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowTokens {
    pub(crate) start: StreamPosition,
    pub(crate) next: StreamPosition,
    pub(super) ids: Vec<u32>,
    /// The positions in `ids` at which documents start. The first is 0, also if the window begins within a document.
    pub(super) starts: Vec<u64>,
    /// The documents that start there.
    pub(super) documents: Vec<DocumentId>,
    /// Tokens of the first document before the window.
    pub(super) tokens_before: u64,
}

impl WindowTokens {
    /// The digest of the tokens and of the documents' starts.
    pub(super) fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.ids.len() as u64).to_le_bytes());
        for id in &self.ids {
            hasher.update(&id.to_le_bytes());
        }
        for start in &self.starts {
            hasher.update(&start.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Tokens that are not in a finished window yet.
pub(super) struct WindowBuffer {
    size: WindowSize,
    start: StreamPosition,
    /// Tokens to drop before the window begins.
    skip: usize,
    /// The number of tokens before `ids`, counted from where reading began.
    before: u64,
    ids: Vec<u32>,
    starts: Vec<u64>,
    /// The documents that start there.
    documents: Vec<DocumentId>,
    /// Tokens before `ids` that belong to the first document, or to the open document if `ids` is empty.
    tokens_before: u64,
    /// Whether the last document is still open.
    is_open: bool,
    /// Positions at which reading can resume, each with the number of tokens before it. The first position is at or
    /// before the window's start.
    points: VecDeque<(u64, ReadPosition, DocumentCounts)>,
    /// If documents decide the sequences, the documents that `cut` has counted.
    counted: Counted,
}

/// Closed documents, and the sequences that they make.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    documents: usize,
    sequences: u64,
    /// The number of tokens in the last sequence, if it has whole documents.
    filled: u64,
}

/// The end of a window and the beginning of the next window, in tokens. If the last input has a target, that token is
/// in both windows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    end: usize,
    next: usize,
}

impl WindowBuffer {
    /// An empty buffer for reading from `start.read` on.
    pub(super) fn new(size: WindowSize, start: StreamPosition) -> WindowBuffer {
        WindowBuffer {
            size,
            skip: start.skip as usize,
            before: 0,
            ids: Vec::new(),
            starts: Vec::new(),
            documents: Vec::new(),
            tokens_before: start.read.tokens,
            is_open: start.read.inside,
            points: VecDeque::from([(0, start.read, start.counts.clone())]),
            counted: Counted::default(),
            start: StreamPosition { digest: None, ..start },
        }
    }

    /// Tokens in the buffer.
    pub(super) fn tokens(&self) -> u64 {
        self.ids.len() as u64
    }

    /// Appends tokens of `document`. `is_start` and `ends` mark the first and the last tokens of the document.
    pub(super) fn push(&mut self, document: DocumentId, ids: &[u32], is_start: bool, ends: bool) {
        if ids.is_empty() {
            return;
        }
        if is_start || self.starts.is_empty() {
            if is_start && self.starts.is_empty() {
                self.tokens_before = 0;
            }
            self.starts.push(self.ids.len() as u64);
            self.documents.push(document);
        }
        self.ids.extend(ids);
        self.is_open = !ends;
        if self.skip > 0 && self.ids.len() >= self.skip {
            let skip = std::mem::take(&mut self.skip);
            self.drop_first(skip);
        }
    }

    /// Marks the end of the tokens as a position at which reading can resume.
    pub(super) fn mark(&mut self, position: ReadPosition, counts: DocumentCounts) {
        let tokens = self.before + self.ids.len() as u64;
        if !position.inside {
            // the next window begins at this position or later
            self.points.clear();
        }
        let document_tokens = if position.inside { self.tokens_of_last(self.ids.len()) } else { 0 };
        self.points.push_back((tokens, ReadPosition { tokens: document_tokens, ..position }, counts));
    }

    /// The next window; `None` while it lacks tokens.
    pub(super) fn take_window(&mut self) -> Option<WindowTokens> {
        let cut = self.cut()?;
        let next_token = self.before + cut.next as u64;
        while self.points.get(1).is_some_and(|(tokens, ..)| *tokens <= next_token) {
            self.points.pop_front();
        }
        let (tokens, read, counts) = self.points.front().cloned()?;
        let skip = next_token - tokens;
        let next = StreamPosition { window: self.start.window + 1, read, skip, counts, digest: None };
        let documents = self.starts.partition_point(|&start| start < cut.end as u64);
        let window = WindowTokens {
            start: std::mem::replace(&mut self.start, next.clone()),
            next,
            ids: self.ids[..cut.end].to_vec(),
            starts: self.starts[..documents].to_vec(),
            documents: self.documents[..documents].to_vec(),
            tokens_before: self.tokens_before,
        };
        self.drop_first(cut.next);
        self.counted = Counted::default();
        Some(window)
    }

    fn cut(&mut self) -> Option<Cut> {
        if self.skip > 0 {
            return None;
        }
        match self.size.cut {
            SequenceCut::Packed => {
                let next = (self.size.sequences * self.size.length) as usize;
                (self.ids.len() > next).then_some(Cut { end: next + 1, next })
            }
            SequenceCut::Unpacked => self.cut_per_document(),
            SequenceCut::WholeDocuments => self.cut_between_documents(),
        }
    }

    /// The end of a window is before the first document that does not fit into the last sequence.
    fn cut_between_documents(&mut self) -> Option<Cut> {
        while let Some(&start) = self.starts.get(self.counted.documents) {
            let counted = &mut self.counted;
            let is_closed = counted.documents + 1 < self.starts.len() || !self.is_open;
            if !is_closed {
                return None;
            }
            let end = self.starts.get(counted.documents + 1).copied().unwrap_or(self.ids.len() as u64);
            if counted.sequences == 0 || !has_room(counted.filled, end - start, self.size.length) {
                if counted.sequences == self.size.sequences {
                    return Some(Cut { end: start as usize, next: start as usize });
                }
                counted.sequences += 1;
                counted.filled = 0;
            }
            counted.filled += end - start;
            counted.documents += 1;
        }
        None
    }

    fn cut_per_document(&mut self) -> Option<Cut> {
        while let Some(&start) = self.starts.get(self.counted.documents) {
            let Counted { documents: document, sequences, .. } = self.counted;
            let end = self.starts.get(document + 1).copied().unwrap_or(self.ids.len() as u64);
            let is_closed = document + 1 < self.starts.len() || !self.is_open;
            let total = sequences + sequences_of_document(end - start, self.size.length);
            if is_closed && total == self.size.sequences {
                return Some(Cut { end: end as usize, next: end as usize });
            }
            if total > self.size.sequences {
                let next = (start + (self.size.sequences - sequences) * self.size.length) as usize;
                return Some(Cut { end: next + 1, next });
            }
            if !is_closed {
                return None;
            }
            self.counted = Counted { documents: document + 1, sequences: total, filled: 0 };
        }
        None
    }

    /// Drops the first `count` tokens. The rest of a divided document becomes the first document.
    fn drop_first(&mut self, count: usize) {
        let is_rest = !self.starts.contains(&(count as u64)) && (count < self.ids.len() || self.is_open);
        let tokens_before = if is_rest { self.tokens_of_last(count) } else { 0 };
        let dropped = self.starts.partition_point(|&start| start < count as u64);
        let continued = (is_rest && count < self.ids.len()).then(|| dropped.saturating_sub(1));
        let kept = continued.unwrap_or(dropped);
        self.documents.drain(..kept);
        self.starts.drain(..kept);
        self.starts.iter_mut().for_each(|start| *start = start.saturating_sub(count as u64));
        self.ids.drain(..count);
        self.before += count as u64;
        self.tokens_before = tokens_before;
    }

    /// The number of tokens before `end` in the last document that starts before `end`.
    fn tokens_of_last(&self, end: usize) -> u64 {
        match self.starts.partition_point(|&start| start < end as u64) {
            0 => self.tokens_before,
            1 => self.tokens_before + end as u64 - self.starts[0],
            documents => end as u64 - self.starts[documents - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::mapped::tests::files;
    use crate::sequences::Sequences;
    use crate::stream::TokenStream;

    /// Tokens of a sequence with the target of its last input, and the starts of documents among its targets.
    type SequenceTokens = (Vec<u32>, Vec<u64>);

    fn sequences(ids: &[u32], starts: &[u64], size: WindowSize) -> Vec<SequenceTokens> {
        let stream = TokenStream::of_documents(&Arc::new(files(ids, starts)), 0..starts.len() as u64);
        let all = Sequences::new(stream, size.length as usize, size.cut);
        let sequence = |index| {
            let range = all.token_range(index);
            let last = range.start + range.length as u64;
            let starts = all.stream.starts_within(range.start + 1, last).map(|start| start - range.start);
            (all.stream.ids(range.start, range.length + 1), starts.collect())
        };
        (0..all.count).map(sequence).collect()
    }

    /// Pieces of documents: (tokens, whether the document ends, whether reading can resume after it).
    type Pieces = Vec<(usize, bool, bool)>;

    fn windows(pieces: &Pieces, size: WindowSize, start: StreamPosition) -> Vec<WindowTokens> {
        let mut buffer = WindowBuffer::new(size, start.clone());
        let (mut is_start, mut next_id, mut windows) = (true, 0, Vec::new());
        let mut document = DocumentId::default();
        for (number, &(tokens, ends, resumes)) in pieces.iter().enumerate() {
            let ids: Vec<u32> = (next_id..next_id + tokens as u32).collect();
            next_id += tokens as u32;
            // a read position of this test has the number of the next piece as its offset
            if is_start {
                document = DocumentId { file: 0, record: number as u64 };
            }
            if number as u64 >= start.read.offset {
                buffer.push(document, &ids, is_start, ends);
                windows.extend(std::iter::from_fn(|| buffer.take_window()));
                if resumes {
                    let offset = number as u64 + 1;
                    let counts = DocumentCounts { documents: offset, ..DocumentCounts::default() };
                    buffer.mark(ReadPosition { offset, inside: !ends, ..ReadPosition::default() }, counts);
                }
            }
            is_start = ends;
        }
        windows
    }

    fn sizes() -> impl Strategy<Value = WindowSize> {
        let cut =
            prop_oneof![Just(SequenceCut::Packed), Just(SequenceCut::Unpacked), Just(SequenceCut::WholeDocuments),];
        (1u64..5, 1u64..6, cut).prop_map(|(sequences, length, cut)| WindowSize { sequences, length, cut })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn windows_have_the_sequences_of_the_whole_stream_wherever_reading_began(
            pieces in prop::collection::vec((1usize..12, any::<bool>(), any::<bool>()), 1..60), size in sizes(),
        ) {
            let mut pieces = pieces;
            if let Some((_, ends, _)) = pieces.last_mut() {
                *ends = true;
            }
            let all = windows(&pieces, size, StreamPosition::default());
            let (mut ids, mut starts, mut is_start) = (Vec::new(), Vec::new(), true);
            let mut documents = Vec::new();
            for (number, &(tokens, ends, _)) in (0..).zip(&pieces) {
                starts.extend(is_start.then_some(ids.len() as u64));
                documents.extend(is_start.then_some(DocumentId { file: 0, record: number }));
                ids.extend(ids.len() as u32..(ids.len() + tokens) as u32);
                is_start = ends;
            }
            let expected = sequences(&ids, &starts, size);
            let mut found = Vec::new();
            for window in &all {
                let window_sequences = sequences(&window.ids, &window.starts, size);
                prop_assert_eq!(window_sequences.len() as u64, size.sequences);
                found.extend(window_sequences);
                // ids are positions in the stream
                for (index, (start, document)) in window.starts.iter().zip(&window.documents).enumerate() {
                    let token = u64::from(window.ids[*start as usize]);
                    let stream_index = starts.partition_point(|&start| start <= token) - 1;
                    let before = if index == 0 { window.tokens_before } else { 0 };
                    prop_assert_eq!((documents[stream_index], starts[stream_index] + before), (*document, token));
                }
                prop_assert_eq!(window.documents.len(), window.starts.len());
            }
            prop_assert_eq!(&found[..], &expected[..found.len()]);
            prop_assert!(expected.len() - found.len() <= size.sequences as usize, "none is missing");
            for (number, window) in all.iter().enumerate() {
                prop_assert_eq!(&windows(&pieces, size, window.start.clone())[..], &all[number..]);
            }
        }
    }
}
