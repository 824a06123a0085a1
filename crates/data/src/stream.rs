//! A stream of tokens without gaps, from documents of the corpus or parts of documents.

use std::ops::Range;
use std::sync::Arc;

use crate::mapped::TokenFiles;

/// A stream of tokens. Its documents are numbered from 0, and each document starts at a token of the stream. A document
/// of the stream may be a part of a document of the corpus.
#[derive(Clone)]
pub(crate) struct TokenStream {
    files: Arc<TokenFiles>,
    runs: Vec<Run>,
    tokens: u64,
    documents: u64,
    origins: Option<Arc<Origins>>,
}

/// The origins of the documents of a window, which is a fixed number of sequences of a streamed corpus.
pub(crate) struct Origins {
    /// The number of each document, see [`DocumentId::number`](crate::streaming::DocumentId::number).
    pub(crate) numbers: Vec<u64>,
    /// The number of tokens that the first document has before the window.
    pub(crate) tokens_before: u64,
}

/// A run of tokens that are also consecutive in the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The position of the first token in the stream.
    token: u64,
    /// The position of the first token in the corpus.
    corpus_token: u64,
    /// The index in the stream of the first token's document.
    document: u64,
    /// The index in the corpus of the first token's document.
    corpus_document: u64,
}

impl TokenStream {
    /// Returns a stream of whole documents of a corpus.
    pub(crate) fn of_documents(files: &Arc<TokenFiles>, documents: Range<u64>) -> TokenStream {
        let mut stream = TokenStream::empty(files);
        stream.push_documents(documents);
        stream
    }

    /// Returns a stream of whole documents of a window.
    pub(crate) fn of_window(files: &Arc<TokenFiles>, documents: Range<u64>, origins: Origins) -> TokenStream {
        TokenStream { origins: Some(Arc::new(origins)), ..TokenStream::of_documents(files, documents) }
    }

    /// Returns a stream without tokens.
    pub(crate) fn empty(files: &Arc<TokenFiles>) -> TokenStream {
        TokenStream { files: Arc::clone(files), runs: Vec::new(), tokens: 0, documents: 0, origins: None }
    }

    /// Appends whole documents of the corpus, which must come after the documents of the stream.
    pub(crate) fn push_documents(&mut self, documents: Range<u64>) {
        let tokens = self.files.offsets.start(documents.start)..self.files.offsets.start(documents.end);
        self.push(documents.start, documents.end - documents.start, tokens);
    }

    /// Appends a part of the corpus document `document`: the range `tokens` of its tokens.
    pub(crate) fn push_part(&mut self, document: u64, tokens: Range<u64>) {
        let start = self.files.offsets.start(document);
        self.push(document, 1, start + tokens.start..start + tokens.end);
    }

    fn push(&mut self, corpus_document: u64, documents: u64, tokens: Range<u64>) {
        if tokens.is_empty() {
            return;
        }
        let continues = self.runs.last().is_some_and(|run| {
            run.corpus_token + (self.tokens - run.token) == tokens.start
                && run.corpus_document + (self.documents - run.document) == corpus_document
        });
        if !continues {
            self.runs.push(Run {
                token: self.tokens,
                corpus_token: tokens.start,
                document: self.documents,
                corpus_document,
            });
        }
        self.tokens += tokens.end - tokens.start;
        self.documents += documents;
    }

    /// Returns the number of tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the number of documents.
    pub(crate) fn documents(&self) -> u64 {
        self.documents
    }

    /// Returns the position of the first token of document `index`. If `index` is [`TokenStream::documents`], returns
    /// the end of the stream.
    pub(crate) fn start(&self, index: u64) -> u64 {
        let run = self.runs.partition_point(|run| run.document <= index).checked_sub(1).map(|run| self.runs[run]);
        match run {
            Some(run) if index < self.documents && index > run.document => {
                self.files.offsets.start(run.corpus_document + (index - run.document)) - run.corpus_token + run.token
            }
            Some(run) if index < self.documents => run.token,
            _ => self.tokens,
        }
    }

    /// Returns the index of the document that contains `token`.
    pub(crate) fn containing(&self, token: u64) -> u64 {
        let run = self.run_of(token);
        run.document + self.files.offsets.containing(run.corpus_token + (token - run.token)) - run.corpus_document
    }

    /// Returns the starts of the documents that start within the tokens `first..=last`, in order.
    pub(crate) fn starts_within(&self, first: u64, last: u64) -> impl Iterator<Item = u64> + '_ {
        let document = if first < self.tokens { self.containing(first) } else { self.documents };
        let from = document + u64::from(self.start(document) < first);
        (from..self.documents).map(|index| self.start(index)).take_while(move |&start| start <= last)
    }

    /// Returns the corpus document that contains document `index` of the stream, and the number of tokens that the
    /// corpus document has before document `index`. The corpus document is identified by its index in the token cache,
    /// or by its number in a streamed corpus.
    pub(crate) fn in_corpus(&self, index: u64) -> (u64, u64) {
        if let Some(origins) = &self.origins
            && let Some(&number) = origins.numbers.get(index as usize)
        {
            return (number, if index == 0 { origins.tokens_before } else { 0 });
        }
        let start = self.start(index);
        let run = self.run_of(start);
        let document = run.corpus_document + (index - run.document);
        (document, run.corpus_token + (start - run.token) - self.files.offsets.start(document))
    }

    /// Returns the ids of the tokens `start..start + count`.
    pub(crate) fn ids(&self, start: u64, count: usize) -> Vec<u32> {
        let mut ids = Vec::with_capacity(count);
        self.for_runs(start, count, |first, count| ids.extend(self.files.ids.range(first, count)));
        ids
    }

    /// Returns whether each of the tokens `start..start + count` is trained on, or `None` if all tokens of the corpus
    /// are trained on.
    pub(crate) fn trained(&self, start: u64, count: usize) -> Option<Vec<bool>> {
        let mask = self.files.mask.as_ref()?;
        let mut trained = Vec::with_capacity(count);
        self.for_runs(start, count, |first, count| {
            trained.extend((first..first + count as u64).map(|token| mask.is_trained(token)));
        });
        Some(trained)
    }

    /// Passes the tokens `start..start + count` to `on_tokens` as ranges of the corpus: the first token and the number
    /// of tokens.
    fn for_runs(&self, start: u64, count: usize, mut on_tokens: impl FnMut(u64, usize)) {
        let mut done = 0;
        let first = self.runs.partition_point(|run| run.token <= start).saturating_sub(1);
        for (index, run) in self.runs.iter().enumerate().skip(first) {
            let end = self.runs.get(index + 1).map_or(self.tokens, |next| next.token);
            let from = start + done as u64;
            let run_tokens = (end - from).min((count - done) as u64) as usize;
            on_tokens(run.corpus_token + (from - run.token), run_tokens);
            done += run_tokens;
            if done == count {
                break;
            }
        }
    }

    /// Returns the run that contains `token`.
    fn run_of(&self, token: u64) -> Run {
        self.runs[self.runs.partition_point(|run| run.token <= token) - 1]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mapped::tests::mapped;

    /// Returns a strategy for parts of documents in ascending order: the length of each document, and the range of its
    /// tokens in the stream.
    fn parts() -> impl Strategy<Value = Vec<(u64, Range<u64>)>> {
        let document = (1u64..9, 0u64..9, 0u64..9).prop_map(|(length, first, last)| {
            let (first, last) = (first.min(length), last.min(length));
            (length, first.min(last)..first.max(last))
        });
        prop::collection::vec(document, 1..12)
    }

    proptest! {
        #[test]
        fn a_stream_is_its_parts_one_after_another(parts in parts()) {
            let lengths: Vec<u64> = parts.iter().map(|(length, _)| *length).collect();
            let files = Arc::new(mapped(&lengths));
            let mut stream = TokenStream::empty(&files);
            // the corpus document, the index in the document, and the id of each token
            let mut expected: Vec<(u64, u64, u32)> = Vec::new();
            let mut starts = Vec::new();
            for (document, (length, tokens)) in (0..).zip(&parts) {
                if *tokens == (0..*length) {
                    stream.push_documents(document..document + 1);
                } else {
                    stream.push_part(document, tokens.clone());
                }
                if !tokens.is_empty() {
                    starts.push((expected.len() as u64, document, tokens.start));
                }
                let first = files.offsets.start(document);
                expected.extend(tokens.clone().map(|token| (document, token, (first + token) as u32)));
            }
            prop_assert_eq!((stream.tokens(), stream.documents()), (expected.len() as u64, starts.len() as u64));
            for (index, (start, document, token)) in (0..).zip(&starts) {
                prop_assert_eq!((stream.start(index), stream.in_corpus(index)), (*start, (*document, *token)));
            }
            prop_assert_eq!(stream.start(stream.documents()), stream.tokens());
            for first in 0..expected.len() {
                let document = starts.iter().rposition(|(start, ..)| *start <= first as u64).unwrap();
                prop_assert_eq!(stream.containing(first as u64), document as u64);
                for count in 0..=expected.len() - first {
                    let ids: Vec<u32> = expected[first..first + count].iter().map(|(.., id)| *id).collect();
                    prop_assert_eq!(stream.ids(first as u64, count), ids);
                    let last = (first + count) as u64;
                    let within: Vec<u64> =
                        starts.iter().map(|(start, ..)| *start).filter(|start| (first as u64..=last).contains(start)).collect();
                    prop_assert_eq!(stream.starts_within(first as u64, last).collect::<Vec<_>>(), within);
                }
            }
        }
    }
}
