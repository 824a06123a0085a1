//! Tests several sources in one corpus, each with its share of the sequences.

use std::collections::BTreeSet;

use crate::common::*;
use stagecoach_data::{CorpusSource, Dataset, HeldOut, HeldOutSet, IGNORE_INDEX};

/// Returns a volume with the sources `x`, `y` and `z`. The documents of `x` consist of the letter `a`, the documents of
/// `y` of `b`, and the documents of `z` of `c`. `documents` is the number of documents of each source. A document has
/// one to five letters.
fn volume(documents: [usize; 3], weights: [u64; 3]) -> TestVolume {
    let mut volume = TestVolume::new(&[]);
    volume.config.sources = Vec::new();
    for ((name, letter), (documents, weight)) in
        [("x", "a"), ("y", "b"), ("z", "c")].into_iter().zip(documents.into_iter().zip(weights))
    {
        for document in 0..documents {
            let text = [letter].repeat(1 + document % 5).join(" ");
            let line = serde_json::json!({ (letter): text }).to_string();
            volume.write(&format!("corpus/{name}/{document:03}.jsonl"), line.as_bytes());
        }
        volume.config.sources.push(CorpusSource {
            name: name.to_owned(),
            text_field: letter.to_owned(),
            weights: vec![(0, weight)],
            ..CorpusSource::new(&format!("corpus/{name}/*"))
        });
    }
    volume
}

/// Returns the index of the source of each of the first `count` sequences, by the letter of the sequence.
fn sources(dataset: &Dataset, seed: u64, count: usize) -> Vec<usize> {
    let plan = dataset.step_plan(seed, 0, count, count).unwrap();
    let source = |index: usize| {
        let batch = dataset.microbatch(&plan, index);
        let tokens = batch.inputs.iter().chain(batch.targets.iter().filter(|&&target| target != IGNORE_INDEX));
        let letters: BTreeSet<i64> = tokens.copied().filter(|&token| token >= i64::from(A)).collect();
        let mut letters = letters.into_iter();
        let letter = letters.next().unwrap();
        assert_eq!(letters.next(), None, "a sequence is of one source");
        (letter - i64::from(A)) as usize
    };
    (0..count).map(source).collect()
}

#[test]
fn sources_have_their_shares_of_the_sequences() {
    for packing in [true, false] {
        let mut volume = volume([20, 40, 9], [5, 3, 2]);
        volume.config.packing = packing;
        volume.config.held_out = HeldOut::LastSequences(0.1);
        let dataset = volume.open();
        let sources = sources(&dataset, 7, 400);
        for step in 1..=400 {
            for (source, share) in [0.5, 0.3, 0.2].into_iter().enumerate() {
                let count = sources[..step].iter().filter(|&&other| other == source).count() as f64;
                assert!((count - share * step as f64).abs() < 1.0, "{count} of {step} of source {source}");
            }
        }
        assert_eq!(dataset.sequences_read(400), [200, 120, 80]);
        // an epoch of a source has each of the source's sequences once
        let epochs = dataset.epoch_lengths().unwrap();
        assert_eq!(epochs.iter().sum::<u64>(), dataset.training_sequences().unwrap());
        let plan = dataset.step_plan(7, 0, 400, 400).unwrap();
        let parts = dataset.document_parts(&plan);
        let of_first: BTreeSet<_> =
            parts.iter().filter(|part| part.document < 20).map(|part| (part.document, part.tokens.start)).collect();
        assert!(of_first.len() as u64 >= epochs[0], "{packing}");
        assert!(parts.iter().all(|part| part.document < 69));
    }
}

#[test]
fn weights_change_at_a_step() {
    let mut volume = volume([20, 20, 20], [1, 1, 0]);
    volume.config.sources[0].weights.push((100, 0));
    volume.config.sources[2].weights.push((100, 1));
    let sources = sources(&volume.open(), 1, 200);
    assert_eq!(sources[..100].iter().filter(|&&source| source == 2).count(), 0);
    assert_eq!(sources[100..].iter().filter(|&&source| source == 0).count(), 0);
    assert_eq!(sources[100..].iter().filter(|&&source| source == 2).count(), 50);
}

#[test]
fn one_source_is_a_corpus_without_sources() {
    let mut mixed = volume([20, 0, 0], [3, 1, 1]);
    mixed.config.sources.truncate(1);
    let mut plain = volume([20, 0, 0], [1, 1, 1]);
    plain.config.sources = vec![CorpusSource { text_field: "a".into(), ..CorpusSource::new("corpus/**/*") }];
    let plan = |volume: &TestVolume| {
        let dataset = volume.open();
        let plan = dataset.step_plan(3, 5, 32, 4).unwrap();
        (0..4).map(|index| dataset.microbatch(&plan, index)).collect::<Vec<_>>()
    };
    assert_eq!(mixed.prepare().unwrap(), plain.prepare().unwrap());
    assert_eq!(plan(&mixed), plan(&plain));
}

#[test]
fn each_source_holds_out_its_own_last_sequences() {
    let mut volume = volume([20, 40, 9], [1, 1, 1]);
    volume.config.held_out = HeldOut::LastSequences(0.2);
    let dataset = volume.open();
    let sets = dataset.evaluation_sets(1);
    assert_eq!(
        sets.iter().map(|set| (set.name.as_str(), set.counts)).collect::<Vec<_>>(),
        [("x", true), ("y", true), ("z", true)]
    );
    let inputs = |set: &HeldOutSet| -> Vec<_> {
        (0..set.plan.layouts.len()).map(|index| dataset.microbatch(&set.plan, index).inputs).collect()
    };
    let held_out: Vec<_> = sets.iter().flat_map(inputs).collect();
    assert_eq!(held_out.len() as u64, dataset.evaluation_sequences());
    for letter in [A, B, C] {
        assert!(held_out.iter().any(|inputs| inputs.contains(&i64::from(letter))));
    }
}

#[test]
fn training_ends_before_a_source_that_stops_repeats() {
    let mut volume = volume([20, 20, 20], [2, 1, 1]);
    assert_eq!(volume.open().exhausted_before(1 << 30), None);
    volume.config.sources[1].stops = true;
    let dataset = volume.open();
    let (end, source) = dataset.exhausted_before(1 << 30).unwrap();
    let epoch = dataset.epoch_lengths().unwrap()[1];
    assert_eq!((source, dataset.sequences_read(end)[1]), (1, epoch));
    assert_eq!(dataset.sequences_read(end + 1)[1], epoch + 1, "the next sequence would be the second epoch's first");
    assert_eq!(dataset.exhausted_before(end), None);
}

#[test]
fn a_source_that_cannot_be_used_is_named() {
    let mut volume = volume([20, 20, 1], [1, 1, 1]);
    let message = volume.error_message();
    assert!(message.starts_with("the source z is too short: 3 tokens in 1 documents"), "{message}");
    volume.config.sources[2].paths = vec!["corpus/z/*".into(), "corpus/x/00*.jsonl".into()];
    assert_eq!(
        volume.error_message(),
        "data.sources: corpus/x/000.jsonl belongs to x and to z: keep it in one of them, and set `weight` to read it \
         more often"
    );
}

#[test]
fn a_tokenizer_is_trained_on_all_sources() {
    let volume = volume([20, 40, 9], [5, 3, 2]).train(300);
    let prepared = volume.prepare().unwrap();
    assert_eq!(prepared.by_source.iter().map(|source| source.documents).collect::<Vec<_>>(), [20, 40, 9]);
    assert_eq!(prepared.by_source.iter().map(|source| source.tokens).sum::<u64>(), prepared.tokens);
    sources(&volume.open(), 1, 0);
    let mut phases = Vec::new();
    let again = stagecoach_data::prepare(&volume.config, &mut |progress| phases.push(progress.phase)).unwrap();
    assert_eq!((again, phases), (prepared, Vec::new()), "the cache is found again");
}
