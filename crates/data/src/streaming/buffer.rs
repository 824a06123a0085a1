//! Buffers the tokens of a stream from the current window on, and divides them into windows. A window has a fixed
//! number of sequences. The next window begins where the last sequence ends, which may be within a document.

use std::collections::VecDeque;

use super::position::{DocumentCounts, DocumentId, ReadPosition, StreamPosition};
use crate::sequences::{Packing, has_room, sequences_of_document};

/// The size of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowSize {
    pub(super) sequences: u64,
    /// The largest number of inputs of a sequence.
    pub(super) length: u64,
    pub(super) cut: Packing,
}

/// A finished window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowTokens {
    pub(crate) start: StreamPosition,
    pub(crate) next: StreamPosition,
    pub(super) ids: Vec<u32>,
    /// The positions in `ids` at which documents start. The first position is 0, even if the window begins within a
    /// document.
    pub(super) starts: Vec<u64>,
    /// The document at each position of `starts`.
    pub(super) documents: Vec<DocumentId>,
    /// The number of tokens that the first document has before the window.
    pub(super) tokens_before: u64,
}

impl WindowTokens {
    /// Returns the digest of the tokens and of the documents' starts.
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

/// The tokens after the last finished window.
pub(super) struct WindowBuffer {
    size: WindowSize,
    start: StreamPosition,
    /// The number of tokens to drop before the window begins.
    skip: usize,
    /// The number of tokens before `ids`, counted from the position where reading began.
    before: u64,
    ids: Vec<u32>,
    starts: Vec<u64>,
    /// The document at each position of `starts`.
    documents: Vec<DocumentId>,
    /// The number of tokens before `ids` that belong to the first document, or to the open document if `ids` is empty.
    tokens_before: u64,
    /// Whether the last document is still open, so that more of its tokens may follow.
    is_open: bool,
    /// Positions at which reading can resume, each with the number of tokens before it. The first position is at or
    /// before the window's start.
    points: VecDeque<(u64, ReadPosition, DocumentCounts)>,
    /// The closed documents that `cut` has counted so far. The field is not used if sequences are packed.
    counted: Counted,
}

/// Closed documents, and the sequences that these documents make.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    documents: usize,
    sequences: u64,
    /// The number of tokens in the last sequence, if sequences hold whole documents.
    filled: u64,
}

/// The end of a window and the beginning of the next window, in tokens. If the last input of a window has a target,
/// this target is in both windows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WindowCut {
    end: usize,
    next: usize,
}

impl WindowBuffer {
    /// Returns an empty buffer for reading from `start.read` on.
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

    /// Returns the number of tokens in the buffer.
    pub(super) fn tokens(&self) -> u64 {
        self.ids.len() as u64
    }

    /// Appends tokens of `document`. `is_start` is true for the first tokens of the document, and `ends` for the last
    /// tokens.
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
            // the next window begins here or later, so the earlier positions are not needed
            self.points.clear();
        }
        let document_tokens = if position.inside { self.tokens_of_last(self.ids.len()) } else { 0 };
        self.points.push_back((tokens, ReadPosition { tokens: document_tokens, ..position }, counts));
    }

    /// Returns the next window, or `None` while the buffer has too few tokens.
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

    fn cut(&mut self) -> Option<WindowCut> {
        if self.skip > 0 {
            return None;
        }
        match self.size.cut {
            Packing::Packed => {
                let next = (self.size.sequences * self.size.length) as usize;
                (self.ids.len() > next).then_some(WindowCut { end: next + 1, next })
            }
            Packing::Unpacked => self.cut_per_document(),
            Packing::WholeDocuments => self.cut_between_documents(),
        }
    }

    /// Returns a cut before the first document that does not fit into the last sequence of the window, or `None` if all
    /// documents in the buffer fit so far.
    fn cut_between_documents(&mut self) -> Option<WindowCut> {
        while let Some(&start) = self.starts.get(self.counted.documents) {
            let counted = &mut self.counted;
            let is_closed = counted.documents + 1 < self.starts.len() || !self.is_open;
            if !is_closed {
                return None;
            }
            let end = self.starts.get(counted.documents + 1).copied().unwrap_or(self.ids.len() as u64);
            if counted.sequences == 0 || !has_room(counted.filled, end - start, self.size.length) {
                if counted.sequences == self.size.sequences {
                    return Some(WindowCut { end: start as usize, next: start as usize });
                }
                counted.sequences += 1;
                counted.filled = 0;
            }
            counted.filled += end - start;
            counted.documents += 1;
        }
        None
    }

    fn cut_per_document(&mut self) -> Option<WindowCut> {
        while let Some(&start) = self.starts.get(self.counted.documents) {
            let Counted { documents: document, sequences, .. } = self.counted;
            let end = self.starts.get(document + 1).copied().unwrap_or(self.ids.len() as u64);
            let is_closed = document + 1 < self.starts.len() || !self.is_open;
            let total = sequences + sequences_of_document(end - start, self.size.length);
            if is_closed && total == self.size.sequences {
                return Some(WindowCut { end: end as usize, next: end as usize });
            }
            if total > self.size.sequences {
                let next = (start + (self.size.sequences - sequences) * self.size.length) as usize;
                return Some(WindowCut { end: next + 1, next });
            }
            if !is_closed {
                return None;
            }
            self.counted = Counted { documents: document + 1, sequences: total, filled: 0 };
        }
        None
    }

    /// Drops the first `count` tokens. If the position after these tokens is within a document, the document's
    /// remaining tokens become the first document.
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

    /// Returns the number of tokens before `end` in the last document that starts before `end`.
    fn tokens_of_last(&self, end: usize) -> u64 {
        match self.starts.partition_point(|&start| start < end as u64) {
            0 => self.tokens_before,
            1 => self.tokens_before + end as u64 - self.starts[0],
            documents => end as u64 - self.starts[documents - 1],
        }
    }
}

#[cfg(test)]
mod tests;
