//! Tests the error messages for invalid data and settings. Also tests that a refused job leaves no files in the cache.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::*;
use stagecoach_data::{Dataset, FORMATS, HeldOut, TokenizerSource};

/// Checks that a corpus of `files` is refused with the message `expected`, and that the cache is empty afterwards.
#[track_caller]
pub(crate) fn refused(files: &[(&str, &[u8])], expected: &str) {
    refused_by(&TestVolume::new(files), expected);
}

#[track_caller]
pub(crate) fn refused_by(volume: &TestVolume, expected: &str) {
    assert_eq!(volume.error_message(), expected);
    assert_eq!(
        fs::read_dir(&volume.config.cache_root).into_iter().flatten().count(),
        0,
        "something was left in the cache"
    );
}

/// The formats that may be compressed, as the error messages list them.
const COMPRESSIBLE: &str = ".txt, .jsonl or .json";

#[test]
fn patterns() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    volume.config.sources[0].paths = vec!["corpus/*.txt".into(), "corpse/*.txt".into()];
    refused_by(
        &volume,
        "data.paths: no file matches \"corpse/*.txt\" below VOLUME: check the spelling, and that the files are on \
         the volume (a folder is matched by \"folder/**/*.txt\")",
    );
    volume.config.sources[0].paths = vec!["corpus".into()];
    refused_by(
        &volume,
        "data.paths: no file matches \"corpus\" below VOLUME: check the spelling, and that the files are on the \
         volume (a folder is matched by \"folder/**/*.txt\")",
    );
    volume.config.sources[0].paths = vec!["corpus/***".into()];
    refused_by(
        &volume,
        "data.paths: \"corpus/***\" is not a valid pattern: wildcards are either regular `*` or recursive `**`",
    );
    volume.config.sources[0].paths = vec![];
    refused_by(&volume, "data.paths is empty: name at least one file or pattern, such as \"corpus/**/*.txt\"");
    let extensions: Vec<String> = FORMATS.iter().map(|format| format!(".{}", format.extension)).collect();
    let (last, others) = extensions.split_last().unwrap();
    let also = format!("{COMPRESSIBLE} also with .gz or .zst");
    refused(
        &[("x.md", b"a")],
        &format!(
            "VOLUME/corpus/x.md is not a {} or {last} file ({also}): narrow data.paths so that it matches corpus \
             files only",
            others.join(", ")
        ),
    );
    let path = "VOLUME/corpus/x.parquet.zst";
    refused(
        &[("x.parquet.zst", b"a")],
        &format!(
            "{path} is a compressed .parquet file, which can't be read ({also}): decompress it (zstd -dc {path}), or \
             narrow data.paths"
        ),
    );
}

#[test]
fn links_that_lead_out_of_the_volume_or_nowhere() {
    let volume = TestVolume::new(&[("x.txt", b"a b c d")]);
    let link = volume.config.volume_root.join("corpus/link.txt");
    symlink("/etc/hostname", &link).unwrap();
    refused_by(
        &volume,
        "VOLUME/corpus/link.txt is a link to /etc/hostname, which is not on the volume: copy the file there, or \
         narrow data.paths",
    );
    fs::remove_file(&link).unwrap();
    symlink("gone.txt", &link).unwrap();
    refused_by(
        &volume,
        "VOLUME/corpus/link.txt is a link to a file that does not exist: remove it, or narrow data.paths",
    );
}

#[test]
fn an_empty_corpus() {
    let expected = "the corpus is empty: 2 files match data.paths, and none holds any text";
    refused(&[("x.txt", b""), ("y.jsonl", b"")], expected);
    refused(&[("x.txt", b""), ("y.jsonl", br#"{"text": ""}"#)], expected);
    refused(&[("x.tokens", b""), ("y.u16", &little_endian(&[BOS, EOS], 2))], expected);
    refused_by(&TestVolume::new(&[("x.txt", b""), ("y.jsonl", b"\n\n")]).train(300), expected);
}

#[test]
fn tokenizers() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d e f")]);
    volume.config.tokenizer = TokenizerSource::File { path: "none.json".into() };
    refused_by(
        &volume,
        "the tokenizer VOLUME/none.json: there is no such file: check data.tokenizer.file.path, which starts at the \
         volume's root",
    );
    volume.config.tokenizer = TokenizerSource::File { path: "letters/tokenizer.json".into() };
    volume.write("letters/tokenizer.json", b"{\"model\": {}}");
    assert!(
        volume
            .error_message()
            .starts_with("the tokenizer VOLUME/letters/tokenizer.json: this tokenizer.json can't be read: "),
        "{}",
        volume.error_message()
    );
    let mut endless = letters();
    endless["added_tokens"] = serde_json::json!([]);
    endless["model"]["vocab"] = serde_json::json!({"a": 0, "[UNK]": 1});
    volume.write("letters/tokenizer.json", endless.to_string().as_bytes());
    refused_by(
        &volume,
        "the tokenizer VOLUME/letters/tokenizer.json has no end-of-text token, so the end of a document could not be \
         learned: name it as data.tokenizer.file.eos or as eos_token in tokenizer_config.json, or add one of [EOT], \
         </s>, <eos>, [EOS], <|end_of_text|>, <|endoftext|> to its added_tokens as a special token",
    );
    refused_by(
        &volume.train(258),
        "data.tokenizer.train.vocabSize is 258: a byte-level tokenizer needs at least 259 (256 bytes and 3 special \
         tokens)",
    );
}

#[test]
fn too_short() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b")]);
    volume.config.packing = true;
    let short = |sequences, held_out| {
        format!(
            "the corpus is too short: 4 tokens in 1 documents make {sequences} sequences of {} tokens, of which \
             {held_out} are held out, and none is left to train on: add text, or lower data.sequenceLength or \
             data.evaluation.fraction",
            4 - sequences
        )
    };
    assert_eq!(volume.error_message(), short(0, 0));
    volume.config.held_out = HeldOut::LastSequences(0.01);
    volume.config.sequence_length = 3;
    assert_eq!(volume.error_message(), short(1, 1));
    volume.config.packing = false;
    assert_eq!(volume.error_message(), short(1, 1));
    volume.config.held_out = HeldOut::Nothing;
    assert_eq!(volume.open().training_sequences().unwrap(), 1);
}

#[test]
fn invalid_settings() {
    let mut volume = TestVolume::new(&[("x.txt", b"a b c d e f")]);
    volume.config.held_out = HeldOut::LastSequences(1.0);
    assert_eq!(volume.error_message(), "data.evaluation.fraction is 1: it must be above 0 and below 1");
    volume.config.held_out = HeldOut::LastSequences(f64::NAN);
    assert_eq!(volume.error_message(), "data.evaluation.fraction is NaN: it must be above 0 and below 1");
    volume.config.held_out = HeldOut::Nothing;
    volume.config.sequence_length = 0;
    assert_eq!(volume.error_message(), "data.sequenceLength is 0: it must be at least 1");
}

#[test]
fn storage_errors_are_distinguished() {
    let volume = TestVolume::new(&[("x.txt", b"a b c d e f")]);
    let prepared = volume.prepare().unwrap();
    let ids = volume.config.cache_root.join(&prepared.folder).join("ids.bin");
    fs::write(&ids, b"short").unwrap();
    let error = Dataset::open(&volume.config, &prepared).map(|_| ()).unwrap_err();
    assert!(error.is_storage());
    assert!(
        error.to_string().ends_with(
            "ids.bin should have 16 bytes and has 5: the token cache is damaged; remove its folder, and the next \
             start builds it again"
        ),
        "{error}"
    );
    assert_eq!(volume.ids(), [BOS, A, A + 1, A + 2, A + 3, A + 4, A + 5, EOS], "the next start builds it again");

    let mut volume = TestVolume::new(&[("x.txt", b"a b c d e f")]);
    volume.config.cache_root = volume.write("not a folder", b"");
    let error = volume.prepare().unwrap_err();
    assert!(error.is_storage() && error.to_string().contains("can't create"), "{error}");
}
