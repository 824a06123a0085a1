//! Tests the documents in a step's rows, their origins, and training without some documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use proptest::prelude::*;
use stagecoach_data::{
    DataError, Dataset, DocumentName, DocumentPart, FORMATS, HeldOut, IGNORE_INDEX, PartText, document_indices,
    part_texts,
};

/// Returns the parts of documents in the rows of one epoch, in the order of the corpus, and the origin of each part.
fn epoch(volume: &TestVolume) -> Vec<(DocumentPart, PartText)> {
    let dataset = volume.open();
    let count = dataset.training_sequences().unwrap() as usize;
    let mut parts = dataset.document_parts(&dataset.step_plan(1, 0, count, count.min(3)).unwrap());
    parts.sort_by_key(|part| (part.document, part.tokens.start));
    let texts = part_texts(&volume.config, &volume.prepare().unwrap(), &parts, &mut |_| {}).unwrap();
    parts.into_iter().zip(texts).collect()
}

fn indices(volume: &TestVolume, names: &[&str]) -> Result<Vec<u64>, DataError> {
    let names: Vec<DocumentName> = names.iter().map(|name| name.parse().unwrap()).collect();
    document_indices(&volume.config, &volume.prepare().unwrap(), &names, &mut |_| {})
}

#[test]
fn a_part_is_reported_with_document_offset_and_text() {
    // the corpus has 14 tokens in three packed rows of 4: BOS a b c EOS BOS b c d d EOS BOS c EOS
    let volume = TestVolume::new(&[("1.txt", b"a b c"), ("2.txt", b" b  c d d"), ("3.txt", b"c")]);
    let reported: Vec<(String, u64, u64, usize, String)> = epoch(&volume)
        .into_iter()
        .map(|(part, text)| (text.name.to_string(), text.offset, part.tokens.start, part.position, text.text))
        .collect();
    let part = |file: &str, offset, token, position, text: &str| {
        (format!("corpus/{file}.txt:1"), offset, token, position, text.to_owned())
    };
    assert_eq!(
        reported,
        [
            part("1", 0, 0, 0, "a b c"),
            // the row's first input is the end token of the previous document, and its target is ignored
            part("2", 1, 0, 1, "b  c d"),
            part("2", 6, 3, 0, "d d"),
            // the last input is the token that begins the document, and its target is the first word
            part("3", 0, 0, 3, "c"),
        ]
    );
}

#[test]
fn progress_ends_at_the_total_even_if_files_are_not_read() {
    let volume = TestVolume::new(&[("1.txt", b"a b c"), ("2.txt", b" b  c d d"), ("3.txt", b"c")]);
    let (first, _) = epoch(&volume).remove(0);
    let mut last = None;
    part_texts(&volume.config, &volume.prepare().unwrap(), &[first], &mut |progress| last = Some(progress)).unwrap();
    let last = last.unwrap();
    assert_eq!((last.bytes_done, last.bytes_total), (15, 15));
}

#[test]
fn documents_of_every_format_are_found_by_their_names_again() {
    let ids = [BOS, A, B, EOS, EOS, C, D, C, EOS, B, B, B];
    let mut volume = TestVolume::new(&[
        ("a.jsonl", b"{\"text\": \"a b\"}\n\n{\"text\": \" \"}\n{\"text\": \"c \\n d\"}\n"),
        ("c.tokens", &little_endian(&ids, 4)),
        ("d.txt", b""),
        ("e.txt", b"d c b a"),
    ]);
    let rows = [Some("a a a"), Some(""), Some("d d")];
    volume.write("corpus/b.parquet", &parquet("text", &rows));
    for packing in [false, true] {
        volume.config.packing = packing;
        let parts = epoch(&volume);
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        for (part, text) in &parts {
            names.insert(part.document, text.name.to_string());
            let whole = texts.entry(text.name.to_string()).or_default();
            // each further part of a document begins with the last word of the previous part
            let is_first = whole.is_empty();
            *whole += text.text.get(usize::from(!is_first)..).unwrap_or_default();
        }
        let found: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
        let expected = [
            ("corpus/a.jsonl:1", "a b"),
            ("corpus/a.jsonl:4", "c \n d"),
            ("corpus/b.parquet:0", "a a a"),
            ("corpus/b.parquet:2", "d d"),
            ("corpus/c.tokens:1", "a b"),
            ("corpus/c.tokens:2", "c d c"),
            ("corpus/c.tokens:3", "b b b"),
            ("corpus/e.txt:1", "d c b a"),
        ];
        // packed rows drop the tokens after the last full row
        assert_eq!(found, expected[..if packing { found.len() } else { 8 }], "packing {packing}");
        assert!(found.len() >= 7);
        for (document, name) in &names {
            assert_eq!(indices(&volume, &[name]).unwrap(), [*document], "{name}");
        }
    }
    assert_eq!(indices(&volume, &["corpus/e.txt:1", "corpus/a.jsonl:1"]).unwrap(), [7, 0]);
    for (name, problem) in [
        ("corpus/x.jsonl:1", "data.paths matches corpus/a.jsonl, corpus/b.parquet, corpus/c.tokens and 2 more"),
        ("corpus/a.jsonl:9", "the file has corpus/a.jsonl:1 to corpus/a.jsonl:4"),
        ("corpus/a.jsonl:3", "it is empty"),
        ("corpus/e.txt:2", "the file has one document, corpus/e.txt:1"),
        ("corpus/d.txt:1", "the file has no document with text"),
    ] {
        let error = indices(&volume, &["corpus/a.jsonl:1", name]).unwrap_err();
        assert!(!error.is_storage());
        assert_eq!(error.to_string(), format!("{name} is no document of the corpus: {problem}"));
    }
    assert!("corpus/a.jsonl".parse::<DocumentName>().is_err() && ":3".parse::<DocumentName>().is_err());
}

#[test]
fn documents_of_every_format_are_numbered_as_the_table_says() {
    for format in &FORMATS {
        let mut volume = TestVolume::of_format(format.extension, &["a b", "c d", "b b"]);
        volume.config.packing = false;
        let parts = epoch(&volume);
        assert_eq!(parts.len(), 3);
        for (index, (part, text)) in parts.iter().enumerate() {
            // a `.txt` file is one document, and a file of another format holds all documents
            let unit = if text.name.file.starts_with("corpus/0.") { index as u64 } else { 0 };
            assert_eq!(text.name.number, format.first_unit + unit, "{format:?}");
            assert_eq!(indices(&volume, &[&text.name.to_string()]).unwrap(), [part.document], "{format:?}");
        }
    }
}

/// Returns a strategy for documents of 1 to 11 words, and for the settings that split them.
fn volumes() -> impl Strategy<Value = (Vec<String>, usize, bool, HeldOut)> {
    let document = prop::collection::vec("[a-h]", 1..12).prop_map(|words| words.join(" "));
    (
        prop::collection::vec(document, 2..9),
        2usize..9,
        any::<bool>(),
        prop::sample::select(vec![HeldOut::Nothing, HeldOut::LastSequences(0.3), HeldOut::Documents(0.3)]),
    )
}

fn volume(documents: &[String], length: usize, packing: bool, held_out: HeldOut) -> TestVolume {
    let lines: String = documents.iter().map(|text| format!("{{\"text\": \"{text}\"}}\n")).collect();
    let mut volume = TestVolume::new(&[("a.jsonl", lines.as_bytes())]);
    volume.config.sequence_length = length;
    volume.config.packing = packing;
    volume.config.held_out = held_out;
    volume
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parts_hold_every_target_once((documents, length, packing, held_out) in volumes()) {
        let volume = volume(&documents, length, packing, held_out);
        prop_assume!(volume.prepare().is_ok());
        let dataset = volume.open();
        let count = dataset.training_sequences().unwrap() as usize;
        let plan = dataset.step_plan(7, 0, count, count.min(3)).unwrap();
        let parts = dataset.document_parts(&plan);
        let targets = |targets: &[i64]| targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u64;
        prop_assert_eq!(parts.iter().map(|part| targets(&part.targets)).sum::<u64>(), plan.target_count);
        for (part, text) in parts.iter().zip(part_texts(&volume.config, &volume.prepare().unwrap(), &parts, &mut |_| {}).unwrap()) {
            let document = &documents[text.name.number as usize - 1];
            prop_assert!(document[text.offset as usize..].starts_with(&text.text));
            // the begin token, the words, and the end token
            prop_assert_eq!(text.document_tokens, document.split(' ').count() as u64 + 2);
            prop_assert!(part.tokens.end <= text.document_tokens);
            let words = part.inputs.iter().chain(part.targets.last()).filter(|&&id| id > i64::from(PAD)).count();
            prop_assert_eq!(words, text.text.split_whitespace().count());
        }
    }

    #[test]
    fn without_documents_nothing_changes_but_their_targets(
        (documents, length, packing, held_out) in volumes(), drawn in prop::collection::btree_set(0u64..9, 0..4),
    ) {
        let volume = volume(&documents, length, packing, held_out);
        prop_assume!(volume.prepare().is_ok());
        let [all, rest] = [BTreeSet::new(), drawn.clone()].map(|without| volume.open().without(without));
        let count = all.training_sequences().unwrap() as usize;
        let [plan, plan_without] = [&all, &rest].map(|dataset| dataset.step_plan(7, 0, count, count.min(3)).unwrap());
        prop_assert_eq!(&plan.layouts, &plan_without.layouts);
        let left_out = |part: &DocumentPart| drawn.contains(&part.document);
        let parts = |dataset: &Dataset| dataset.document_parts(&plan);
        let kept: Vec<DocumentPart> = parts(&all).into_iter().filter(|part| !left_out(part)).collect();
        prop_assert_eq!(parts(&rest), kept);
        let targets = |dataset: &Dataset, index| dataset.microbatch(&plan, index).targets;
        let mut counted = 0;
        for index in 0..plan.layouts.len() {
            let (before, after) = (targets(&all, index), targets(&rest, index));
            prop_assert!(before.iter().zip(&after).all(|(before, after)| after == before || *after == IGNORE_INDEX));
            prop_assert_eq!(all.microbatch(&plan, index).inputs, rest.microbatch(&plan, index).inputs);
            counted += after.iter().filter(|&&target| target != IGNORE_INDEX).count() as u64;
        }
        prop_assert_eq!(plan_without.target_count, counted);
        prop_assert_eq!(all.evaluation_sets(2), rest.evaluation_sets(2));
        let held_out = |dataset: &Dataset| -> Vec<_> {
            let sets = dataset.evaluation_sets(2).into_iter().map(|set| set.plan);
            sets.flat_map(|plan| (0..plan.layouts.len()).map(|index| dataset.microbatch(&plan, index)).collect::<Vec<_>>()).collect()
        };
        prop_assert_eq!(held_out(&all), held_out(&rest));
    }
}

/// The first version of Stagecoach wrote a cache with this name. With another name, each job would tokenise its corpus
/// again.
#[test]
fn a_cache_keeps_its_name() {
    let volume = TestVolume::of_format("txt", &["the cat sat on the mat"]).train(300);
    assert_eq!(volume.prepare().unwrap().folder.to_str(), Some("8eb754a8e8f828afab446a4cfb50affb"));
}
