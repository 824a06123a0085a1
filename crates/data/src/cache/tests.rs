//! Killed, damaged, raced and changed: the cache comes out the same.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::*;

/// Bytes of the corpus in a part: a dozen parts of the corpus below.
const PART: u64 = 8_000;
const KILLED_RUN: &str = "cache::tests::killed_run";

/// Short files, and one that is cut into pieces and so spans parts.
fn volume() -> (TempDir, Settings) {
    let folder = TempDir::new().unwrap();
    let root = folder.path().to_owned();
    fs::create_dir(root.join("corpus")).unwrap();
    for (file, bytes) in [15_000, 9_000, 170_000, 0, 30_000].into_iter().enumerate() {
        fs::write(root.join(format!("corpus/{file}.txt")), text(file as u64, bytes)).unwrap();
    }
    let lines: String = (5..60).map(|line| format!("{{\"text\": \"{}\"}}\n", text(line, 700))).collect();
    fs::write(root.join("corpus/z.jsonl"), lines).unwrap();
    let settings = settings(root);
    (folder, settings)
}

fn settings(root: PathBuf) -> Settings {
    Settings {
        cache: root.join("cache"),
        paths: vec!["corpus/*".into()],
        text_field: "text".into(),
        sequence_length: 64,
        packing: true,
        evaluation_fraction: 0.1,
        tokenizer: TokenizerSource::Train { vocab_size: 320 },
        root,
    }
}

fn text(seed: u64, bytes: usize) -> String {
    let words = ["coach", "horses", "road", "inn,", "mail", "the", "of", "milestone.", "turnpike", "and"];
    let word = |index| words[crate::order::sequence_at(seed, index, 10) as usize];
    let mut text: String = (0..).map(word).flat_map(|word| [word, " "]).flat_map(str::chars).take(bytes).collect();
    text.shrink_to_fit();
    text
}

fn run(settings: &Settings) -> Prepared {
    prepare_in_parts(settings, PART, &mut |_| {}).unwrap()
}

/// Names and contents of all files of the cache, but the times in `meta.json`.
fn contents(settings: &Settings) -> Vec<(PathBuf, Vec<u8>)> {
    fn visit(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { visit(&path, into) } else { into.push(path) }
        }
    }
    let mut paths = Vec::new();
    visit(&settings.cache, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = if path.ends_with("meta.json") { Vec::new() } else { fs::read(&path).unwrap() };
        (path.strip_prefix(&settings.cache).unwrap().to_owned(), bytes)
    };
    paths.into_iter().map(read).collect()
}

fn parts(settings: &Settings) -> usize {
    let folders = fs::read_dir(&settings.cache).into_iter().flatten().flatten();
    folders.flat_map(|folder| fs::read_dir(folder.path().join("parts")).into_iter().flatten()).count()
}

/// Run as a process of its own by the test below: dies at a given call of `progress`, without any farewell.
#[test]
#[ignore = "not a test: a process to be killed"]
fn killed_run() {
    let (Ok(root), Ok(at)) = (std::env::var("DATA_TEST_ROOT"), std::env::var("DATA_TEST_KILL_AT")) else { return };
    let (mut calls, at) = (0, at.parse::<usize>().unwrap());
    let progress = &mut |_| {
        calls += 1;
        if calls == at {
            std::process::abort();
        }
    };
    prepare_in_parts(&settings(root.into()), PART, progress).unwrap();
}

#[test]
fn a_killed_run_goes_on_after_its_last_part() {
    let (_folder, undisturbed) = volume();
    let mut calls = Vec::new();
    let prepared = prepare_in_parts(&undisturbed, PART, &mut |progress| calls.push(progress.what)).unwrap();
    let tokenising = calls.iter().filter(|&&what| what == "tokenising").count();
    assert!(tokenising > 8, "{calls:?}");

    let first = calls.iter().position(|&what| what == "tokenising").unwrap();
    // Each on a fresh volume: while hashing, while training, and at every second report of the tokenising.
    for at in [1, first].into_iter().chain((first + 1..=calls.len()).step_by(2)) {
        let (_folder, settings) = volume();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED_RUN, "--ignored"])
            .env("DATA_TEST_ROOT", &settings.root)
            .env("DATA_TEST_KILL_AT", at.to_string())
            .output()
            .unwrap()
            .status;
        assert!(!status.success(), "killed at call {at} of {}", calls.len());
        let done_before = parts(&settings);
        let mut went_on_from = None;
        let again = prepare_in_parts(&settings, PART, &mut |progress| {
            if progress.what == "tokenising" {
                went_on_from.get_or_insert(progress.done);
            }
        });
        assert_eq!(again.unwrap(), prepared);
        assert!(contents(&settings) == contents(&undisturbed), "killed at call {at}");
        if at > first + 1 {
            assert!(done_before > 0, "killed at call {at} after no part");
            assert!(
                went_on_from.is_none_or(|done| done > done_before as u64 * PART),
                "began anew after {done_before} parts"
            );
        }
    }
}

#[test]
fn parts_leave_no_trace_in_the_result() {
    let (_one, in_parts) = volume();
    let (_other, at_once) = volume();
    assert_eq!(run(&in_parts), prepare(&at_once, &mut |_| {}).unwrap());
    assert!(contents(&in_parts) == contents(&at_once));
}

/// Leaves the folder as a run does that was killed between its last part and the final files.
fn undo_the_end(settings: &Settings, prepared: &Prepared) -> PathBuf {
    let folder = settings.cache.join(&prepared.folder);
    fs::remove_file(folder.join("meta.json")).unwrap();
    fs::create_dir(folder.join("parts")).unwrap();
    folder
}

#[test]
fn half_written_files_are_no_obstacle() {
    let (_folder, settings) = volume();
    let prepared = run(&settings);
    let expected = contents(&settings);
    let folder = undo_the_end(&settings, &prepared);
    fs::write(folder.join("ids.bin"), b"from another time").unwrap();
    fs::write(folder.join("ids.bin.0123456789abcdef.unfinished"), b"half").unwrap();
    fs::write(folder.join("parts/000000.0123456789abcdef.unfinished"), b"half").unwrap();
    fs::write(folder.join("parts/000000"), b"{\"tokenizer\":").unwrap();
    fs::write(folder.join("parts/000001"), b"").unwrap();
    assert_eq!(run(&settings), prepared);
    assert!(contents(&settings) == expected);
}

#[test]
fn a_damaged_cache_is_built_again() {
    for (file, damage) in [("ids.bin", "x"), ("documents.bin", ""), ("tokenizer.json", "{}"), ("meta.json", "{")] {
        let (_folder, settings) = volume();
        let prepared = run(&settings);
        let expected = contents(&settings);
        let folder = settings.cache.join(&prepared.folder);
        fs::write(folder.join(file), damage).unwrap();
        assert_eq!(run(&settings), prepared, "{file}");
        assert!(contents(&settings) == expected, "{file}");
    }
}

#[test]
fn two_at_once_do_no_harm() {
    let (_folder, reference) = volume();
    let prepared = run(&reference);
    for _ in 0..3 {
        let (_folder, settings) = volume();
        thread::scope(|scope| {
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&settings))).collect();
            for run in runs {
                assert_eq!(run.join().unwrap(), prepared);
            }
        });
        run(&settings);
        assert!(contents(&settings) == contents(&reference));
    }
}

fn touch(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().append(true).open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// What a start reports having done.
fn work(settings: &Settings) -> (Prepared, Vec<&'static str>) {
    let mut work = Vec::new();
    let prepared = prepare_in_parts(settings, PART, &mut |progress| work.push(progress.what)).unwrap();
    work.dedup();
    (prepared, work)
}

#[test]
fn a_start_reads_only_what_changed() {
    let (_folder, mut settings) = volume();
    let (first, all) = work(&settings);
    assert_eq!(all, ["hashing the corpus", "training the tokenizer", "tokenising"]);
    assert_eq!(work(&settings), (first.clone(), vec![]));

    // How sequences are cut is no business of the cache.
    settings.sequence_length = 32;
    settings.packing = false;
    settings.evaluation_fraction = 0.2;
    assert_eq!(work(&settings), (first.clone(), vec![]));

    // Another time, the same contents: hashed once, then noted.
    let file = settings.root.join("corpus/1.txt");
    touch(&file, 1_000_000_000);
    assert_eq!(work(&settings), (first.clone(), vec!["hashing the corpus"]));
    assert_eq!(work(&settings), (first.clone(), vec![]));

    // Other contents of the same size.
    fs::write(&file, text(99, 9_000)).unwrap();
    touch(&file, 1_000_000_001);
    let (changed, all) = work(&settings);
    assert_eq!(all.len(), 3);
    assert_ne!((&changed.folder, &changed.corpus_hash), (&first.folder, &first.corpus_hash));

    // Back again: both are still there.
    fs::write(&file, text(1, 9_000)).unwrap();
    touch(&file, 1_000_000_002);
    assert_eq!(work(&settings), (first.clone(), vec!["hashing the corpus"]));

    // Other tokenizers are other caches of the same corpus.
    settings.tokenizer = TokenizerSource::Train { vocab_size: 300 };
    let (smaller, all) = work(&settings);
    assert_eq!(all, ["training the tokenizer", "tokenising"]);
    assert_eq!((smaller.corpus_hash == first.corpus_hash, smaller.folder == first.folder), (true, false));
}

#[test]
fn a_file_that_grows_while_it_is_read_is_told() {
    let (_folder, settings) = volume();
    let file = settings.root.join("corpus/0.txt");
    let progress = &mut |progress: Progress| {
        if progress.what == "tokenising" {
            fs::write(&file, "more").unwrap();
        }
    };
    let error = prepare_in_parts(&settings, PART, progress).unwrap_err();
    assert!(matches!(&error, DataError::Changed { path } if *path == file), "{error}");
    assert_eq!(fs::read_dir(&settings.cache).unwrap().count(), 0);
    run(&settings);
}
