//! Tests the held-out part: documents that are selected by their content, and files that are held out as a whole.

use std::collections::BTreeSet;

use crate::common::*;
use proptest::prelude::*;
use stagecoach_data::{
    CorpusSource, DataConfig, Dataset, DocumentFormat, HeldOut, HeldOutFiles, HeldOutSet, IGNORE_INDEX, part_texts,
};

/// Returns a volume whose files have the given documents, one per line.
fn volume(files: &[(&str, &[&str])]) -> TestVolume {
    let mut volume = TestVolume::new(&[]);
    for (name, texts) in files {
        let lines: String = texts.iter().map(|text| format!("{{\"text\": \"{text}\"}}\n")).collect();
        volume.write(&format!("corpus/{name}"), lines.as_bytes());
    }
    volume.config.packing = false;
    volume.config.sequence_length = 16;
    volume
}

fn held_out(name: &str, pattern: &str) -> HeldOutFiles {
    HeldOutFiles {
        name: name.to_owned(),
        paths: vec![pattern.to_owned()],
        format: DocumentFormat::Text,
        text_field: "text".to_owned(),
    }
}

/// Returns the texts of the documents that training reads in an epoch.
fn trained_texts(config: &DataConfig) -> BTreeSet<String> {
    let prepared = stagecoach_data::prepare(config, &mut |_| {}).unwrap();
    let dataset = Dataset::open(config, &prepared).unwrap();
    let count = dataset.training_sequences().unwrap() as usize;
    let parts = dataset.document_parts(&dataset.step_plan(3, 0, count, count).unwrap());
    part_texts(config, &prepared, &parts, &mut |_| {})
        .unwrap()
        .into_iter()
        .map(|part| part.text.trim().to_owned())
        .collect()
}

/// Returns the targets of a set, sorted.
fn targets(dataset: &Dataset, set: &HeldOutSet) -> Vec<i64> {
    let targets = |index| dataset.microbatch(&set.plan, index).targets;
    let mut targets: Vec<i64> =
        (0..set.plan.layouts.len()).flat_map(targets).filter(|&target| target != IGNORE_INDEX).collect();
    targets.sort_unstable();
    targets
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The corpora have enough documents for whole documents to be held out. With few documents, only the end of one
    /// document would be held out.
    #[test]
    fn neither_names_nor_copies_decide_which_documents_are_held_out(
        texts in prop::collection::btree_set("[a-h]( [a-h]){1,6}", 40..60), copies in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        seed: u64,
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let copied: Vec<&str> = copies.iter().map(|copy| *copy.get(&texts)).collect();
        let reversed: Vec<&str> = texts.iter().rev().copied().collect();
        let (first, last) = texts.split_at(texts.len() / 2);
        let trained = |files: &[(&str, &[&str])]| {
            let mut volume = volume(files);
            volume.config.held_out = HeldOut::Documents(0.5);
            volume.config.seed = seed;
            trained_texts(&volume.config)
        };
        let whole = trained(&[("a.jsonl", &texts)]);
        prop_assert!(whole.len() < texts.len());
        prop_assert_eq!(&whole, &trained(&[("z.jsonl", first), ("a.jsonl", last)]));
        prop_assert_eq!(&whole, &trained(&[("b.jsonl", &reversed)]));
        // a copy in any file is held out if its original is held out
        prop_assert_eq!(&whole, &trained(&[("a.jsonl", &texts), ("z.jsonl", &copied)]));
    }
}

#[test]
fn training_and_the_held_out_part_share_no_token_of_few_documents() {
    let mut volume = volume(&[("a.jsonl", &["a b c d e f g h a b c d e f g h"])]);
    volume.config.held_out = HeldOut::Documents(0.25);
    for packing in [true, false] {
        volume.config.packing = packing;
        volume.config.sequence_length = 4;
        let dataset = volume.open();
        let count = dataset.training_sequences().unwrap() as usize;
        let parts = dataset.document_parts(&dataset.step_plan(1, 0, count, 1).unwrap());
        let trained = parts.iter().map(|part| part.tokens.end).max().unwrap();
        // each of the two documents has 8 words and an end; the last 5 of these 18 tokens are held out: the 4 inputs of
        // a packed sequence, and its last target
        assert!(trained < 13, "{parts:?}");
        let [set] = &dataset.evaluation_sets(1)[..] else { panic!("one set") };
        assert_eq!(targets(&dataset, set), [i64::from(EOS), 9, 10, 11], "{packing}");
    }
}

#[test]
fn files_are_held_out_as_a_whole() {
    let mut volume = volume(&[("a.jsonl", &["a a a", "b b b"]), ("h.jsonl", &["c c c c", "d d"])]);
    volume.config.held_out_files = vec![held_out("", "corpus/h.jsonl")];
    let prepared = volume.prepare().unwrap();
    assert_eq!(
        prepared.notes,
        ["data.paths and data.evaluation match the same files, and training excludes them: corpus/h.jsonl"]
    );
    assert_eq!(trained_texts(&volume.config), BTreeSet::from(["a a a", "b b b"].map(str::to_owned)));
    let dataset = volume.open();
    let [set] = &dataset.evaluation_sets(2)[..] else { panic!("one set") };
    assert_eq!((set.name.as_str(), set.counts), ("", true));
    assert_eq!(targets(&dataset, set), [EOS, EOS, C, C, C, C, D, D].map(i64::from));
}

#[test]
fn a_tokenizer_is_not_trained_on_held_out_files() {
    let texts = ["a coach and horses", "the mail coach"];
    let hash = |held_out_files: Vec<HeldOutFiles>, files: &[(&str, &[&str])]| {
        let mut volume = volume(files).train(300);
        volume.config.held_out_files = held_out_files;
        volume.prepare().unwrap().tokenizer_hash
    };
    let alone = hash(Vec::new(), &[("a.jsonl", &texts)]);
    let files: [(&str, &[&str]); 2] = [("a.jsonl", &texts), ("h.jsonl", &["zebra zebra zebra", "xylophone xylophone"])];
    assert_eq!(hash(vec![held_out("", "corpus/h*")], &files), alone);
    assert_ne!(hash(Vec::new(), &files), alone);
}

#[test]
fn named_sets_have_plans_of_their_own() {
    let mut volume = volume(&[("a.jsonl", &["a a a"; 9]), ("b.jsonl", &["b b", "b b b"]), ("c.jsonl", &["c"])]);
    volume.config.sources = vec![CorpusSource::new("corpus/a*")];
    volume.config.held_out_files = vec![held_out("bees", "corpus/b*"), held_out("seas", "corpus/c*")];
    let names = |volume: &TestVolume| -> Vec<(String, bool)> {
        volume.open().evaluation_sets(1).into_iter().map(|set| (set.name, set.counts)).collect()
    };
    // if there is no other held-out part, the loss of the first set is the job's held-out loss
    assert_eq!(names(&volume), [("bees".to_owned(), true), ("seas".to_owned(), false)]);
    let dataset = volume.open();
    let sets = dataset.evaluation_sets(1);
    assert_eq!(targets(&dataset, &sets[0]), [EOS, EOS, B, B, B, B, B].map(i64::from));
    assert_eq!(targets(&dataset, &sets[1]), [EOS, C].map(i64::from));
    assert_eq!(dataset.held_out_files().collect::<Vec<_>>(), [("bees", 2), ("seas", 1)]);
    volume.config.held_out_files.push(held_out("", "corpus/a.jsonl"));
    assert_eq!(
        volume.error_message(),
        "data.evaluation holds out all files of the corpus: leave at least one of these files to train on"
    );
    volume.config.held_out_files.pop();
    volume.config.held_out = HeldOut::LastSequences(0.2);
    assert_eq!(names(&volume)[..2], [(String::new(), true), ("bees".to_owned(), false)]);
}

#[test]
fn an_evaluation_may_read_a_part_of_a_set() {
    let texts: Vec<String> = (0..40).map(|index| ["a", "b", "c", "d"][index % 4].to_owned()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut volume = volume(&[("a.jsonl", &["e e e"]), ("h.jsonl", &texts)]);
    volume.config.held_out_files = vec![held_out("", "corpus/h*")];
    volume.config.evaluation_max_sequences = Some(7);
    let read = |volume: &TestVolume| {
        let dataset = volume.open();
        let [set] = &dataset.evaluation_sets(1)[..] else { panic!("one set") };
        assert_eq!((set.plan.layouts.len(), dataset.evaluation_sequences()), (7, 40));
        targets(&dataset, set)
    };
    let first = read(&volume);
    assert_eq!(first, read(&volume));
    // the seed selects the sequences, so another seed may select others
    let mut others = BTreeSet::new();
    for seed in 1..9 {
        volume.config.seed = seed;
        others.insert(read(&volume));
    }
    assert!(others.len() > 1);
}

#[test]
fn sets_that_cannot_be_used_are_named() {
    let mut volume = volume(&[("a.jsonl", &["a a a"]), ("b.jsonl", &["b b b b"])]);
    volume.config.sources = vec![CorpusSource::new("corpus/a*")];
    volume.config.held_out_files = vec![held_out("", "corpus/b*"), held_out("bees", "corpus/*b.jsonl")];
    assert_eq!(
        volume.error_message(),
        "data.evaluation: corpus/b.jsonl belongs to data.evaluation.paths and to the held-out set bees: keep it in \
         one of them"
    );
    volume.config.held_out_files.pop();
    volume.config.held_out = HeldOut::Documents(0.3);
    volume.config.sources[0].name = "bees".into();
    volume.config.held_out_files[0].name = "bees".into();
    assert_eq!(
        volume.error_message(),
        "data.evaluation.sets: the set bees has the name of a source, and the loss of that source's held-out part is \
         reported under this name: give the set another name"
    );
    volume.config.held_out = HeldOut::Nothing;
    volume.config.held_out_files[0].name = String::new();
    volume.config.packing = true;
    volume.config.sequence_length = 7;
    volume.config.sources[0] = CorpusSource::new("corpus/c*");
    volume.write("corpus/c.txt", "a b c d ".repeat(9).as_bytes());
    assert_eq!(
        volume.error_message(),
        "data.evaluation.paths is too short: 6 tokens make no sequence of 7 tokens to evaluate: add text, or lower \
         data.sequenceLength"
    );
}
