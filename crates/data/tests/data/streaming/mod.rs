//! Tests streamed corpora. Training reads a stream in windows of a fixed number of sequences. The batches do not depend
//! on where reading began, or on the windows that the volume keeps.

mod damage;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;
use stagecoach_data::{
    CorpusSource, DataError, Dataset, DocumentFormat, DocumentPart, HeldOut, HeldOutFiles, Microbatch, OnBadRecord,
    StreamPosition, Streaming, document_indices, part_texts,
};

use crate::common::{A, EOS, TestVolume, little_endian, open_stream, parquet};

const BATCH: usize = 3;

/// Returns the document of `number`: the digits of the number in base 8, written as letters.
fn document(number: usize) -> String {
    format!("{number:o}").bytes().map(|digit| format!("{} ", char::from(b'a' + digit - b'0'))).collect()
}

fn documents(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(document).collect()
}

fn json_lines(texts: &[String]) -> Vec<u8> {
    texts.iter().flat_map(|text| format!("{}\n", json!({"text": text})).into_bytes()).collect()
}

fn rows(texts: &[String]) -> Vec<u8> {
    parquet("text", &texts.iter().map(|text| Some(text.as_str())).collect::<Vec<_>>())
}

/// Returns a volume with documents in files of several formats. Only the Parquet file is divided into several blocks,
/// the units in which a stream shuffles and reads the corpus.
fn volume(documents_per_file: usize) -> TestVolume {
    let mut volume = TestVolume::new(&[]);
    let texts_of_file = |file: usize| documents(file * documents_per_file..(file + 1) * documents_per_file);
    let texts = texts_of_file(0);
    volume.write("corpus/a.parquet", &rows(&texts));
    volume.write("corpus/b.jsonl", &json_lines(&texts_of_file(1)));
    volume.write("corpus/c.jsonl.gz", &crate::common::compressed(&[&json_lines(&texts_of_file(2))], "gz"));
    volume.write("corpus/d.txt", documents(3 * documents_per_file..3 * documents_per_file + 1)[0].as_bytes());
    stream(&mut volume, 5);
    volume
}

fn stream(volume: &mut TestVolume, window_sequences: u64) {
    let folder = volume.folder.path().join("windows");
    volume.config.streaming = Some(Streaming { folder, window_sequences, block_bytes: 300, max_bytes: 0 });
}

/// The batches of a step, the stream positions after the step (one per source), and the parts of documents in the step.
type Step = (Vec<Microbatch>, Vec<StreamPosition>, Vec<DocumentPart>);

fn train(dataset: &Dataset, seed: u64, steps: std::ops::Range<u64>) -> Vec<Step> {
    let step = |step: u64| {
        let position = step * BATCH as u64;
        dataset.wait_for_step(position, BATCH, &|_| true).unwrap().expect("a stream");
        let plan = dataset.step_plan(seed, position, BATCH, 2).unwrap();
        let batches = (0..2).map(|index| dataset.microbatch(&plan, index)).collect();
        (batches, dataset.stream_positions(position + BATCH as u64), dataset.document_parts(&plan))
    };
    steps.map(step).collect()
}

/// Returns the tokens of a document by its number.
fn tokens(number: usize) -> Vec<i64> {
    let letters = format!("{number:o}").into_bytes();
    letters.iter().map(|digit| i64::from(A) + i64::from(digit - b'0')).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_resumed_stream_has_the_batches_of_an_undisturbed_one(
        seed in 0u64..1000, packing: bool, window in 1u64..9, cut in 1u64..12, keeps: bool, held_out in prop::option::of(0.05f64..0.5),
    ) {
        let mut volume = volume(20);
        volume.config.packing = packing;
        volume.config.seed = seed;
        volume.config.held_out = held_out.map_or(HeldOut::Nothing, HeldOut::Documents);
        stream(&mut volume, window);
        // a small fraction of these few documents may be less than one document
        let prepared = stagecoach_data::prepare(&volume.config, &mut |_| {});
        prop_assume!(!matches!(prepared, Err(DataError::NothingDrawn { .. })));
        let undisturbed = train(&open_stream(&volume.config, &[]), seed, 0..24);
        let mut resumed = volume.config.clone();
        let streaming = resumed.streaming.as_mut().unwrap();
        if keeps {
            streaming.max_bytes = 1 << 30;
        } else {
            streaming.folder = volume.folder.path().join("elsewhere");
        }
        let before = train(&open_stream(&resumed, &[]), seed, 0..cut);
        let positions = &before.last().unwrap().1;
        let after = train(&open_stream(&resumed, positions), seed, cut..24);
        prop_assert_eq!([before, after].concat(), undisturbed);
    }
}

#[test]
fn an_epoch_has_every_document_once_in_an_order_of_its_own() {
    for extension in ["parquet", "jsonl"] {
        let mut volume = TestVolume::new(&[]);
        let texts = documents(64..128);
        for (file, texts) in texts.chunks(8).enumerate() {
            let contents = match extension {
                "parquet" => rows(texts),
                _ => json_lines(texts),
            };
            volume.write(&format!("corpus/{file}.{extension}"), &contents);
        }
        volume.config.packing = false;
        stream(&mut volume, 8);
        let read: Vec<Vec<i64>> = train(&open_stream(&volume.config, &[]), 0, 0..43)
            .into_iter()
            .flat_map(|(batches, ..)| batches)
            .flat_map(|batch| batch.inputs.chunks(batch.layout.length).map(<[i64]>::to_vec).collect::<Vec<_>>())
            .collect();
        let expected: BTreeSet<Vec<i64>> = (64..128).map(tokens).collect();
        let epochs = [&read[..64], &read[64..128]];
        for epoch in epochs {
            assert_eq!(epoch.iter().map(|row| row[row.len() - 3..].to_vec()).collect::<BTreeSet<_>>(), expected);
        }
        assert_ne!(epochs[0], epochs[1], "{extension}");
        assert_ne!(
            epochs[0].iter().map(|row| row[row.len() - 3..].to_vec()).collect::<Vec<_>>(),
            (64..128).map(tokens).collect::<Vec<_>>()
        );
    }
}

/// The file's name and the record's number identify the document of a part, wherever reading began.
#[test]
fn the_documents_of_a_step_are_known_by_name() {
    let mut volume = volume(20);
    let ids: Vec<u32> =
        (80..100).flat_map(|number| [tokens(number), vec![i64::from(EOS)]].concat()).map(|id| id as u32).collect();
    volume.write("corpus/e.u16", &little_endian(&ids, 2));
    volume.config.held_out = HeldOut::Documents(0.2);
    for packing in [true, false] {
        volume.config.packing = packing;
        stream(&mut volume, 5);
        let prepared = stagecoach_data::prepare(&volume.config, &mut |_| {}).unwrap();
        let steps = train(&open_stream(&volume.config, &[]), 0, 0..60);
        let parts: Vec<DocumentPart> = steps.into_iter().flat_map(|(.., parts)| parts).collect();
        let texts = part_texts(&volume.config, &prepared, &parts, &mut |_| {}).unwrap();
        let mut files = BTreeSet::new();
        for (part, text) in parts.iter().zip(&texts) {
            let (file, number) = (text.name.file.as_str(), text.name.number as usize);
            let number = match file {
                "corpus/a.parquet" => number,
                "corpus/b.jsonl" => 20 + number - 1,
                "corpus/c.jsonl.gz" => 40 + number - 1,
                "corpus/d.txt" => 60,
                _ => 80 + number - 1,
            };
            let expected = tokens(number);
            // the begin token, the letters, and the end token
            assert_eq!(text.document_tokens, expected.len() as u64 + 2, "{text:?}");
            let inputs = part.inputs.iter().filter(|id| expected.contains(id)).copied();
            let from = (part.tokens.start as usize).saturating_sub(1);
            assert_eq!(inputs.collect::<Vec<_>>(), expected[from..expected.len().min(part.tokens.end as usize - 1)]);
            if file != "corpus/e.u16" {
                assert!(document(number)[text.offset as usize..].starts_with(&text.text), "{text:?}");
            }
            let found =
                document_indices(&volume.config, &prepared, std::slice::from_ref(&text.name), &mut |_| {}).unwrap();
            assert_eq!(found, [part.document]);
            files.insert(file);
        }
        assert_eq!(files.len(), 5, "{files:?}");
    }
}

#[test]
fn a_copy_of_a_held_out_document_is_never_trained_on() {
    let mut volume = TestVolume::new(&[]);
    for file in 0..6 {
        volume.write(&format!("corpus/{file}.jsonl"), &json_lines(&documents(64..264)));
    }
    volume.config.packing = false;
    volume.config.sequence_length = 8;
    volume.config.held_out = HeldOut::Documents(0.1);
    stream(&mut volume, 32);
    let dataset = open_stream(&volume.config, &[]);
    let rows = |batch: Microbatch| {
        batch.inputs.chunks(batch.layout.length).map(|row| row[row.len() - 3..].to_vec()).collect::<Vec<_>>()
    };
    let [set] = &dataset.evaluation_sets(4)[..] else { panic!("one set") };
    let held_out: BTreeSet<Vec<i64>> =
        (0..set.plan.layouts.len()).flat_map(|index| rows(dataset.microbatch(&set.plan, index))).collect();
    let trained: BTreeSet<Vec<i64>> =
        train(&dataset, 0, 0..700).into_iter().flat_map(|(batches, ..)| batches).flat_map(rows).collect();
    assert!(!held_out.is_empty() && held_out.is_disjoint(&trained), "{held_out:?}");
    // about a tenth of the documents is held out; the evaluation does not read all of them
    let all: BTreeSet<Vec<i64>> = (64..264).map(tokens).collect();
    assert!((150..=195).contains(&trained.len()) && trained.is_subset(&all), "{}", trained.len());
}

#[test]
fn sources_are_streamed_in_their_proportions_and_files_are_held_out() {
    let mut volume = TestVolume::new(&[]);
    for (name, numbers) in [("x", 64..200), ("y", 200..264), ("z", 300..320)] {
        volume.write(&format!("corpus/{name}.jsonl"), &json_lines(&documents(numbers)));
    }
    let source = |name: &str, weight| CorpusSource {
        name: name.to_owned(),
        weights: vec![(0, weight)],
        ..CorpusSource::new(&format!("corpus/{name}.jsonl"))
    };
    volume.config.sources = vec![source("x", 2), source("y", 1)];
    let set = HeldOutFiles {
        name: String::new(),
        paths: vec!["corpus/z.jsonl".into()],
        format: DocumentFormat::Text,
        text_field: "text".into(),
    };
    volume.config.held_out_files = vec![set];
    volume.config.packing = false;
    stream(&mut volume, 4);
    let dataset = open_stream(&volume.config, &[]);
    let sizes: Vec<usize> = dataset.evaluation_sets(6)[0].plan.layouts.iter().map(|layout| layout.rows).collect();
    assert_eq!(sizes, [6, 6, 6, 2]);
    let mut counts = BTreeMap::new();
    for (batches, positions, _) in train(&dataset, 0, 0..60) {
        assert_eq!(positions.len(), 2);
        for batch in batches {
            let first = batch.inputs.chunks(batch.layout.length).map(|row| row[1] - i64::from(A)).collect::<Vec<_>>();
            first.into_iter().for_each(|digit| *counts.entry(digit).or_insert(0) += 1);
        }
    }
    // 64..200 begin with 1, 2 and 3, and 200..264 with 3 and 4, in octal digits
    assert_eq!(counts.values().sum::<i32>(), 180);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(dataset.sequences_read(180), [120, 60]);
}

#[test]
fn texts_that_can_t_be_streamed_are_refused() {
    let mut unknown = TestVolume::new(&[("a.txt", b"? ?"), ("b.txt", b"  ")]);
    stream(&mut unknown, 4);
    let step = open_stream(&unknown.config, &[]).wait_for_step(0, 1, &|_| true);
    assert!(step.is_ok(), "unknown words are tokens");
    let mut blank = TestVolume::new(&[("b.txt", b"  ")]);
    stream(&mut blank, 4);
    let error = open_stream(&blank.config, &[]).wait_for_step(0, 1, &|_| true).unwrap_err();
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
    let mut few = TestVolume::new(&[("a.txt", b"a b c d e f g h a b c")]);
    few.config.held_out = HeldOut::Documents(0.001);
    stream(&mut few, 2);
    let error = stagecoach_data::prepare(&few.config, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("give no held-out sequence"), "{error}");
}

#[test]
fn a_trained_tokenizer_is_that_of_the_beginning_of_the_stream() {
    let volume = |name: &str| {
        let mut volume = TestVolume::new(&[(name, b"the cat sat on the mat. the cat ate.")]).train(300);
        stream(&mut volume, 2);
        volume
    };
    let (one, other) = (volume("a.txt"), volume("b.txt"));
    let hash = |volume: &TestVolume| volume.prepare().unwrap().tokenizer_hash;
    assert_eq!(hash(&one), hash(&other));
    let mut downloaded = volume("a.txt");
    downloaded.config.streaming = None;
    assert_eq!(hash(&one), hash(&downloaded));
}

#[test]
fn all_documents_are_counted_over_resumes() {
    let mut volume = TestVolume::new(&[]);
    let bad =
        [r#"{"text": null}"#, r#"{"text": "a \ud800 b"}"#, r#"{"text": ""}"#, "no json", r#"{"text": "c x[EOT]"}"#, ""];
    volume.write("corpus/a.jsonl", &[bad.join("\n").into_bytes(), json_lines(&documents(64..104))].concat());
    volume.config.on_bad_record = OnBadRecord::Skip;
    stream(&mut volume, 8);
    let read = |dataset: &Dataset, step: u64| {
        let positions = train(dataset, 0, step..step + 1).pop().unwrap().1;
        (positions, dataset.stream_notes((step + 1) * BATCH as u64))
    };
    let dataset = open_stream(&volume.config, &[]);
    let undisturbed: Vec<_> = (0..30).map(|step| read(&dataset, step)).collect();
    // the thread of a dropped dataset does not remove the windows of later datasets
    drop(dataset);
    let mut positions = Vec::new();
    for (step, expected) in (0..).zip(&undisturbed) {
        let found = read(&open_stream(&volume.config, &positions), step);
        assert_eq!(found, *expected);
        positions = found.0;
    }
    // the windows for 30 steps (90 sequences of 4 tokens) end in the second epoch
    let expected = [
        "of the streamed corpus: 45 documents read, 2 empty",
        "the texts contain the names of special tokens, which are encoded as ordinary text: [EOT] (2 times); set \
         data.specialTokens to Parse to encode them as special tokens",
        "the tokenizer lacks characters of the corpus: 4 unknown tokens stand for them",
        "the texts have 2 halves of surrogate pairs without the other half: U+FFFD replaces each",
        "4 bad records are left out: 2 with null for text, 2 in invalid JSON; in corpus/a.jsonl (4)",
    ];
    assert!(undisturbed.iter().any(|(_, notes)| *notes == expected), "{undisturbed:#?}");
}
