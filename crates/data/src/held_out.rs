//! Selects the documents of a source that are held out.
//!
//! A document's key is a hash of the seed and the content. So the names and the order of files have no effect, and all
//! copies of a document are treated alike. A document is held out if its key, a 64-bit number, is below the held-out
//! fraction of 2^64. If a source has too few documents for a draw, its documents are held out in the order of their
//! keys, until the held-out documents have this fraction of the source's tokens. In this case, only the end of the last
//! document is held out. A conversation is always held out as a whole.

use std::ops::Range;
use std::sync::Arc;

use crate::document_hashes::DocumentHashes;
use crate::mapped::{DocumentOffsets, TokenFiles};
use crate::order::splitmix64;
use crate::stream::TokenStream;

/// The training documents and the held-out documents of a source.
pub(crate) struct Split {
    pub(crate) training: TokenStream,
    pub(crate) held_out: TokenStream,
}

/// The held-out share of a source's documents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The fraction, above 0 and below 1.
    pub(crate) fraction: f64,
    pub(crate) seed: u64,
    /// The smallest number of tokens that are held out.
    pub(crate) least_tokens: u64,
    /// Whether a document is held out as a whole, even if the source has few documents.
    pub(crate) whole_documents: bool,
}

/// Draws the held-out documents by their hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldOutSampler {
    seed: u64,
    threshold: u64,
}

impl HeldOutSampler {
    /// Returns the sampler that holds out `fraction` of the documents.
    pub(crate) fn new(fraction: f64, seed: u64) -> HeldOutSampler {
        HeldOutSampler { seed: splitmix64(seed), threshold: (fraction * 2f64.powi(64)) as u64 }
    }

    /// Whether the document with this hash is held out.
    pub(crate) fn holds_out(&self, hash: u64) -> bool {
        self.key(hash) < self.threshold
    }

    fn key(&self, hash: u64) -> u64 {
        splitmix64(hash ^ self.seed)
    }
}

/// Splits the `documents` of a source into training documents and held-out documents.
pub(crate) fn split(files: &Arc<TokenFiles>, hashes: &DocumentHashes, documents: Range<u64>, share: Share) -> Split {
    let offsets = &files.offsets;
    let draw = HeldOutSampler::new(share.fraction, share.seed);
    let key = |document: u64| draw.key(hashes.get(document));
    let mut held_out: Vec<(u64, Range<u64>)> = documents
        .clone()
        .filter(|&document| draw.holds_out(hashes.get(document)))
        .map(|d| (d, 0..tokens_of(offsets, d)))
        .collect();
    let count = documents.end - documents.start;
    if (count as f64) * share.fraction < 1.0 || tokens_in(&held_out) < share.least_tokens {
        held_out = by_tokens(offsets, documents.clone(), key, share);
    }

    let mut split = Split { training: TokenStream::empty(files), held_out: TokenStream::empty(files) };
    let mut next = documents.start;
    for (document, tokens) in held_out {
        split.training.push_documents(next..document);
        split.training.push_part(document, 0..tokens.start);
        split.held_out.push_part(document, tokens);
        next = document + 1;
    }
    split.training.push_documents(next..documents.end);
    split
}

/// Returns the held-out tokens of each document, in ascending order of the documents. The function selects documents in
/// the order of their keys until they have the share of the tokens. It selects only the end of the last document,
/// unless documents stay whole. Copies of a document have the same key, and the function selects the same tokens from
/// each copy.
fn by_tokens(
    offsets: &DocumentOffsets,
    documents: Range<u64>,
    key: impl Fn(u64) -> u64,
    share: Share,
) -> Vec<(u64, Range<u64>)> {
    let all = offsets.start(documents.end) - offsets.start(documents.start);
    let wanted = ((all as f64 * share.fraction).ceil() as u64).max(share.least_tokens);
    let mut by_key: Vec<(u64, u64)> = documents.map(|document| (key(document), document)).collect();
    by_key.sort_unstable();
    let mut held_out: Vec<(u64, Range<u64>)> = Vec::new();
    for copies in by_key.chunk_by(|(one, _), (other, _)| one == other) {
        let missing = wanted.saturating_sub(tokens_in(&held_out));
        if missing == 0 {
            break;
        }
        let tokens_per_copy = missing.div_ceil(copies.len() as u64);
        held_out.extend(copies.iter().map(|&(_, document)| {
            let tokens = tokens_of(offsets, document);
            let before = if share.whole_documents { 0 } else { tokens.saturating_sub(tokens_per_copy) };
            (document, before..tokens)
        }));
    }
    held_out.sort_unstable_by_key(|(document, _)| *document);
    held_out
}

fn tokens_of(offsets: &DocumentOffsets, document: u64) -> u64 {
    offsets.start(document + 1) - offsets.start(document)
}

fn tokens_in(parts: &[(u64, Range<u64>)]) -> u64 {
    parts.iter().map(|(_, tokens)| tokens.end - tokens.start).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::mapped::tests::mapped;

    /// Returns the documents of a stream, each with the number of its tokens before the stream's part, and the length
    /// of the part.
    fn parts(stream: &TokenStream) -> Vec<(u64, u64, u64)> {
        let part = |index| {
            let (document, before) = stream.in_corpus(index);
            (document, before, stream.start(index + 1) - stream.start(index))
        };
        (0..stream.documents()).map(part).collect()
    }

    proptest! {
        /// A number stands for the content of a document. Documents with the same number are copies, and have the same
        /// length.
        #[test]
        fn every_token_is_on_one_side_and_copies_are_on_the_same(
            contents in prop::collection::vec(0u64..40, 1..80), fraction in 0.001..0.999f64, seed: u64, least_tokens in 1u64..30,
        ) {
            let lengths: Vec<u64> = contents.iter().map(|content| 1 + content % 11).collect();
            let files = Arc::new(mapped(&lengths));
            let share = Share { fraction, seed, least_tokens, whole_documents: false };
            let hashes = DocumentHashes::of(&contents);
            let count = contents.len() as u64;
            let Split { training, held_out } = split(&files, &hashes, 0..count, share);
            prop_assert_eq!(training.tokens() + held_out.tokens(), lengths.iter().sum::<u64>());
            prop_assert!(held_out.tokens() >= least_tokens.min(lengths.iter().sum()));
            let mut parts_by_content: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
            for (document, before, length) in parts(&held_out) {
                prop_assert_eq!(before + length, lengths[document as usize], "the end of a document");
                parts_by_content.entry(contents[document as usize]).or_default().insert((before, length));
            }
            let mut kept: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for (document, before, length) in parts(&training) {
                prop_assert_eq!(before, 0);
                kept.entry(contents[document as usize]).or_default().insert(length);
            }
            for (content, held_out) in &parts_by_content {
                prop_assert_eq!(held_out.len(), 1, "copies are held out alike");
                let before = held_out.first().unwrap().0;
                prop_assert_eq!(kept.get(content).cloned().unwrap_or_default(), BTreeSet::from_iter((before > 0).then_some(before)));
            }
            // the order of the files has no effect
            let reversed: Vec<u64> = contents.iter().rev().copied().collect();
            let files = mapped(&lengths.iter().rev().copied().collect::<Vec<_>>());
            let other = split(&Arc::new(files), &DocumentHashes::of(&reversed), 0..count, share);
            let contents_of = |stream: &TokenStream, contents: &[u64]| {
                let mut parts: Vec<_> = parts(stream).into_iter().map(|(d, before, length)| (contents[d as usize], before, length)).collect();
                parts.sort_unstable();
                parts
            };
            prop_assert_eq!(contents_of(&held_out, &contents), contents_of(&other.held_out, &reversed));
        }
    }

    #[test]
    fn many_documents_are_drawn_as_a_whole() {
        let lengths = vec![7; 4000];
        let files = Arc::new(mapped(&lengths));
        let hashes = DocumentHashes::of(&(0..4000).collect::<Vec<_>>());
        let held_out = |seed| {
            split(&files, &hashes, 0..4000, Share { fraction: 0.05, seed, least_tokens: 9, whole_documents: false })
                .held_out
        };
        let first = held_out(1);
        assert!((140..260).contains(&first.documents()), "{}", first.documents());
        assert_eq!(first.tokens(), 7 * first.documents());
        assert_ne!(parts(&first), parts(&held_out(2)));
        assert_eq!(parts(&first), parts(&held_out(1)));
    }

    #[test]
    fn few_documents_lose_the_end_of_one() {
        let files = Arc::new(mapped(&[1000, 1000, 1000]));
        let hashes = DocumentHashes::of(&[1, 2, 3]);
        let share = Share { fraction: 0.02, seed: 5, least_tokens: 9, whole_documents: false };
        let [part] = parts(&split(&files, &hashes, 0..3, share).held_out)[..] else { panic!("one document") };
        assert_eq!((part.1, part.2), (940, 60));
        let many = Share { fraction: 0.4, ..share };
        let halves = parts(&split(&files, &hashes, 0..3, many).held_out);
        assert!(halves.iter().map(|(.., length)| length).sum::<u64>() >= 1000, "{halves:?}");
    }

    /// A job that resumes from an older checkpoint must hold out the same documents, so the selection must never
    /// change.
    #[test]
    fn the_selection_is_stable_across_versions() {
        let hashes = DocumentHashes::of(&(100..120).collect::<Vec<_>>());
        let share = Share { fraction: 0.25, seed: 42, least_tokens: 1, whole_documents: false };
        let documents: Vec<u64> = parts(&split(&Arc::new(mapped(&[3; 20])), &hashes, 0..20, share).held_out)
            .iter()
            .map(|(document, ..)| *document)
            .collect();
        assert_eq!(documents, [2, 14]);
    }
}
