//! Compares sequences, layouts and targets with results worked out by hand, and checks properties that hold for any
//! corpus.

use crate::common::*;
use proptest::prelude::*;
use stagecoach_data::{BatchPlan, Dataset, HeldOut, IGNORE_INDEX, Microbatch, MicrobatchLayout};

const NONE: i64 = IGNORE_INDEX;

/// Returns the microbatches of a plan.
fn all(dataset: &Dataset, plan: &BatchPlan) -> Vec<Microbatch> {
    (0..plan.layouts.len()).map(|index| dataset.microbatch(plan, index)).collect()
}

/// Returns every training sequence once, as a sorted list of rows (inputs, targets, document starts).
fn rows(dataset: &Dataset) -> Vec<(Vec<i64>, Vec<i64>, Vec<u32>)> {
    let count = dataset.training_sequences().unwrap() as usize;
    let plan = dataset.step_plan(1, 0, count, count).unwrap();
    let mut rows: Vec<_> = all(dataset, &plan)
        .into_iter()
        .map(|mut one| (one.inputs, one.targets, one.layout.document_starts.remove(0)))
        .collect();
    rows.sort();
    rows
}

/// Three documents with 12 tokens: `BOS a b c EOS BOS b c EOS BOS c EOS`.
const THREE: [(&str, &[u8]); 3] = [("1.txt", b"a b c"), ("2.txt", b"b c"), ("3.txt", b"c")];

#[test]
fn packed_rows() {
    let dataset = TestVolume::new(&THREE).open();
    // The 12 tokens have 11 targets. Two sequences of 4 use the first 8 targets. The last target of the first row is
    // the end token of the first document.
    assert_eq!(
        rows(&dataset),
        [(vec![0, 4, 5, 6], vec![4, 5, 6, 1], vec![]), (vec![1, 0, 5, 6], vec![NONE, 5, 6, 1], vec![1])]
    );
    let plan = dataset.step_plan(1, 0, 2, 1).unwrap();
    assert_eq!((plan.target_count, plan.layouts[0].rows, plan.layouts[0].length), (7, 2, 4));
}

#[test]
fn packed_rows_hold_many_documents() {
    let mut volume = TestVolume::new(&THREE);
    volume.config.sequence_length = 11;
    assert_eq!(
        rows(&volume.open()),
        [(vec![0, 4, 5, 6, 1, 0, 5, 6, 1, 0, 6], vec![4, 5, 6, 1, NONE, 5, 6, 1, NONE, 6, 1], vec![5, 9])]
    );
    // The second document starts right after the first row. The row's last target would be the begin token of this
    // document, so this target is ignored. The first row itself contains no document start.
    volume.config.sequence_length = 5;
    assert_eq!(
        rows(&volume.open()),
        [(vec![0, 4, 5, 6, 1], vec![4, 5, 6, 1, NONE], vec![]), (vec![0, 5, 6, 1, 0], vec![5, 6, 1, NONE, 6], vec![4])]
    );
}

#[test]
fn unpacked_rows_are_padded_to_the_longest() {
    let mut volume = TestVolume::new(&THREE);
    volume.config.packing = false;
    let dataset = volume.open();
    assert_eq!(dataset.training_sequences().unwrap(), 3);
    let plan = dataset.step_plan(1, 0, 3, 1).unwrap();
    let layout = MicrobatchLayout { rows: 3, length: 4, document_starts: vec![vec![]; 3] };
    assert_eq!((&plan.layouts, plan.target_count), (&vec![layout.clone()], 9));
    let batch = dataset.microbatch(&plan, 0);
    assert_eq!(batch.layout, layout);
    let mut rows: Vec<_> = batch.inputs.chunks(4).zip(batch.targets.chunks(4)).collect();
    rows.sort();
    assert_eq!(
        rows,
        [
            (&[0, 4, 5, 6][..], &[4, 5, 6, 1][..]),
            (&[0, 5, 6, 2], &[5, 6, 1, NONE]),
            (&[0, 6, 2, 2], &[6, 1, NONE, NONE])
        ]
    );
    // A microbatch of one row is as long as the row.
    let mut lengths: Vec<usize> =
        dataset.step_plan(1, 0, 3, 3).unwrap().layouts.iter().map(|layout| layout.length).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [2, 3, 4]);
}

#[test]
fn unpacked_documents_around_the_length_of_a_sequence() {
    let windows = |text: &[u8]| {
        let mut volume = TestVolume::new(&[("x.txt", text)]);
        volume.config.packing = false;
        rows(&volume.open()).into_iter().map(|(inputs, targets, _)| (inputs, targets)).collect::<Vec<_>>()
    };
    // The lengths include begin and end tokens. A document of 4 tokens has 3 targets, a document of 5 tokens fills a
    // row, and a document of 6 tokens needs another row.
    assert_eq!(windows(b"a b"), [(vec![0, 4, 5], vec![4, 5, 1])]);
    assert_eq!(windows(b"a b c"), [(vec![0, 4, 5, 6], vec![4, 5, 6, 1])]);
    assert_eq!(windows(b"a b c d"), [(vec![0, 4, 5, 6], vec![4, 5, 6, 7]), (vec![7], vec![1])]);
    assert_eq!(windows(b"a b c d d d d"), [(vec![0, 4, 5, 6], vec![4, 5, 6, 7]), (vec![7, 7, 7, 7], vec![7, 7, 7, 1])]);
}

#[test]
fn a_tokenizer_without_a_begin_or_padding() {
    let mut volume = TestVolume::new(&[("1.txt", b"a b c"), ("2.txt", b"b")]);
    let mut tokenizer = letters();
    tokenizer["added_tokens"] = serde_json::json!([special_token("<|endoftext|>", 9)]);
    tokenizer["model"]["vocab"] = serde_json::json!({"<|endoftext|>": 9, "a": 4, "b": 5, "c": 6, "[UNK]": 0});
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    volume.config.packing = false;
    let dataset = volume.open();
    let batch = dataset.microbatch(&dataset.step_plan(1, 0, 2, 1).unwrap(), 0);
    let mut rows: Vec<_> = batch.inputs.chunks(3).zip(batch.targets.chunks(3)).collect();
    rows.sort();
    assert_eq!(rows, [(&[4, 5, 6][..], &[5, 6, 9][..]), (&[5, 9, 9], &[9, NONE, NONE])]);
}

#[test]
fn the_last_sequences_are_held_out() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d a b c d a b c d d")]);
    volume.config.sequence_length = 2;
    volume.config.held_out = HeldOut::LastSequences(0.5);
    let dataset = volume.open();
    assert_eq!((dataset.training_sequences().unwrap(), dataset.evaluation_sequences()), (4, 3));
    let plan = evaluation_plan(&dataset, 2);
    assert_eq!(plan.layouts.iter().map(|layout| layout.rows).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(plan.target_count, 6);
    let batches = all(&dataset, &plan);
    assert_eq!((&batches[0].inputs, &batches[0].targets), (&vec![7, 4, 5, 6], &vec![4, 5, 6, 7]));
    assert_eq!((&batches[1].inputs, &batches[1].targets), (&vec![7, 7], &vec![7, 1]));
    assert_eq!(dataset.training_tokens().unwrap(), 8);
    // All three sequences stay held out, even if an evaluation reads only the first one.
    volume.config.evaluation_max_sequences = Some(1);
    let limited = volume.open();
    assert_eq!((limited.training_sequences().unwrap(), limited.evaluation_sequences()), (4, 3));
    let plan = evaluation_plan(&limited, 2);
    assert_eq!((plan.target_count, &all(&limited, &plan)[0].inputs), (2, &vec![7, 4]));
    // Training never reads the held-out sequences, which contain the only end of text.
    assert_eq!(
        rows(&dataset).into_iter().map(|(inputs, ..)| inputs).collect::<Vec<_>>(),
        [[0, 4], [5, 6], [5, 6], [7, 4]]
    );
    let seen: Vec<_> = (0..40).flat_map(|step| all(&dataset, &dataset.step_plan(3, step * 5, 5, 2).unwrap())).collect();
    assert!(seen.iter().flat_map(|batch| &batch.targets).all(|&target| target != i64::from(EOS)));
    // A fraction that rounds to no sequence still holds out one.
    volume.config.held_out = HeldOut::LastSequences(0.001);
    assert_eq!(volume.open().evaluation_sequences(), 1);
    volume.config.held_out = HeldOut::Nothing;
    assert_eq!((volume.open().evaluation_sequences(), evaluation_plan(&volume.open(), 2).layouts.len()), (0, 0));
}

#[test]
fn unigram_entropy_of_the_held_out_targets() {
    let mut volume = TestVolume::new(&[("1.txt", b"d d d d d d"), ("2.txt", b"a a b"), ("3.txt", b"a")]);
    volume.config.sequence_length = 7;
    volume.config.held_out = HeldOut::LastSequences(0.5);
    // The corpus has 16 tokens in two sequences. The targets of the second sequence are [begin of 2], a, a, b, EOS,
    // [begin of 3], a. The begins do not count, so 3 a, 1 b and 1 EOS remain.
    let by_hand = -(0.6 * 0.6f64.ln() + 2.0 * 0.2 * 0.2f64.ln());
    assert!((volume.open().evaluation_unigram_entropy() - by_hand).abs() < 1e-12);
    volume.config.packing = false;
    volume.config.held_out = HeldOut::LastSequences(0.7); // two of three documents: the same five targets, and one more EOS
    let by_hand = -(0.5 * 0.5f64.ln() + 1.0 / 3.0 * (1.0f64 / 3.0).ln() + 1.0 / 6.0 * (1.0f64 / 6.0).ln());
    assert!((volume.open().evaluation_unigram_entropy() - by_hand).abs() < 1e-12);
    volume.config.held_out = HeldOut::Nothing;
    assert_eq!(volume.open().evaluation_unigram_entropy(), 0.0);
}

/// Returns a corpus and its ids. `lengths` has the length of each document in tokens, without the begin and end tokens.
/// The ids of the text count up from 4, so that every token of the text has a different id.
fn counted(lengths: &[usize], sequence_length: usize, packing: bool, fraction: f64) -> (TestVolume, Vec<u32>) {
    let mut next = 4..;
    let documents: Vec<Vec<u32>> =
        lengths.iter().map(|&length| [vec![BOS], next.by_ref().take(length).collect(), vec![EOS]].concat()).collect();
    let ids = documents.concat();
    let mut volume = TestVolume::new(&[("x.tokens", &little_endian(&ids, 4))]);
    let mut tokenizer = letters();
    tokenizer["model"]["vocab"]["last"] = 70_000.into();
    volume.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    volume.config.sequence_length = sequence_length;
    volume.config.packing = packing;
    volume.config.held_out = if fraction > 0.0 { HeldOut::LastSequences(fraction) } else { HeldOut::Nothing };
    (volume, ids)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The targets are the tokens of the corpus up to the end of the last whole sequence, except the first token and
    /// the tokens that begin a document.
    #[test]
    fn packed_every_token_is_a_target_once_an_epoch(
        lengths in prop::collection::vec(1usize..20, 1..30), length in 1usize..12, microbatches in 1usize..5, batch in 1usize..9,
    ) {
        let (volume, ids) = counted(&lengths, length, true, 0.0);
        prop_assume!(ids.len() > length);
        let dataset = volume.open();
        let sequences = dataset.training_sequences().unwrap() as usize;
        prop_assert_eq!(sequences, (ids.len() - 1) / length);
        let mut expected: Vec<u32> = ids[1..=sequences * length].iter().copied().filter(|&id| id != BOS).collect();
        // Two epochs are read, so that some steps span both epochs.
        expected.extend(expected.clone());
        expected.sort_unstable();
        let (mut seen, mut position) = (Vec::new(), 0);
        while position < 2 * sequences {
            let rows = batch.min(2 * sequences - position);
            let plan = dataset.step_plan(9, position as u64, rows, microbatches).unwrap();
            let batches = all(&dataset, &plan);
            let counting: Vec<u32> = batches.iter().flat_map(|one| &one.targets).filter(|&&id| id != NONE).map(|&id| id as u32).collect();
            prop_assert_eq!(counting.len() as u64, plan.target_count);
            prop_assert_eq!(plan.layouts.iter().map(|layout| layout.rows).sum::<usize>(), rows);
            for one in &batches {
                for (row, starts) in one.layout.document_starts.iter().enumerate() {
                    let inputs = &one.inputs[row * length..(row + 1) * length];
                    let begins: Vec<u32> = (1..length as u32).filter(|&at| inputs[at as usize] == i64::from(BOS)).collect();
                    prop_assert_eq!(starts, &begins);
                }
            }
            seen.extend(counting);
            position += rows;
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, expected);
    }

    /// In the training part and the held-out part together, every token is a target except the tokens that begin
    /// documents.
    #[test]
    fn unpacked_every_token_is_a_target_once(
        lengths in prop::collection::vec(1usize..20, 2..30), length in 1usize..12, fraction in 0.0..0.5f64,
    ) {
        let (volume, ids) = counted(&lengths, length, false, fraction);
        let dataset = volume.open();
        let training = dataset.step_plan(9, 0, dataset.training_sequences().unwrap() as usize, 3).unwrap();
        let evaluation = evaluation_plan(&dataset, 4);
        let mut seen: Vec<u32> = [&training, &evaluation].iter().flat_map(|plan| all(&dataset, plan))
            .flat_map(|one| one.targets).filter(|&id| id != NONE).map(|id| id as u32).collect();
        prop_assert_eq!(seen.len() as u64, training.target_count + evaluation.target_count);
        let mut expected: Vec<u32> = ids.into_iter().filter(|&id| id != BOS).collect();
        seen.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(seen, expected);
    }

    /// The sequence at a position doesn't depend on the size of steps and microbatches.
    #[test]
    fn position_alone_decides_the_sequence(seed: u64, position in 0u64..1000, microbatches in 1usize..6) {
        let (volume, _) = counted(&[50], 3, true, 0.0);
        let dataset = volume.open();
        let inputs = |plan: BatchPlan| all(&dataset, &plan).into_iter().flat_map(|one| one.inputs).collect::<Vec<_>>();
        let one_by_one: Vec<i64> = (position..position + 12).flat_map(|at| inputs(dataset.step_plan(seed, at, 1, 1).unwrap())).collect();
        prop_assert_eq!(&inputs(dataset.step_plan(seed, position, 12, microbatches).unwrap()), &one_by_one);
        prop_assert_eq!(&[inputs(dataset.step_plan(seed, position, 5, 2).unwrap()), inputs(dataset.step_plan(seed, position + 5, 7, 7).unwrap())].concat(), &one_by_one);
    }
}
