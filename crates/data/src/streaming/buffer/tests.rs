//! Compares the windows of a buffer with the sequences of the whole stream.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::mapped::tests::files;
use crate::sequences::Sequences;
use crate::stream::TokenStream;

/// The tokens of a sequence, including the target of its last input, and the starts of documents among its targets.
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

/// Pieces of documents: the number of tokens, whether the document ends, and whether reading can resume after the
/// piece.
type Pieces = Vec<(usize, bool, bool)>;

fn windows(pieces: &Pieces, size: WindowSize, start: StreamPosition) -> Vec<WindowTokens> {
    let mut buffer = WindowBuffer::new(size, start.clone());
    let (mut is_start, mut next_id, mut windows) = (true, 0, Vec::new());
    let mut document = DocumentId::default();
    for (number, &(tokens, ends, resumes)) in pieces.iter().enumerate() {
        let ids: Vec<u32> = (next_id..next_id + tokens as u32).collect();
        next_id += tokens as u32;
        if is_start {
            document = DocumentId { file: 0, record: number as u64 };
        }
        // a read position of this test has the number of the next piece as its offset
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
    let cut = prop_oneof![Just(Packing::Packed), Just(Packing::Unpacked), Just(Packing::WholeDocuments),];
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
