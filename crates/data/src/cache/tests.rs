//! Tests that the cache has the same contents after crashes, damage, races and changes.

mod damage;

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::config::OnLongConversation;
use crate::examples::compressed;

/// The number of corpus bytes per part. The corpus below has a dozen parts.
const PART_BYTES: u64 = 8_000;
const WORDS: [&str; 10] = ["coach", "horses", "road", "inn,", "mail", "the", "of", "milestone.", "turnpike", "and"];
const KILLED_RUN: &str = "cache::tests::killed_run";

/// Returns a volume with short files, and with a long file whose pieces span parts.
fn volume() -> (TempDir, DataConfig) {
    let folder = TempDir::new().unwrap();
    let root = folder.path().to_owned();
    fs::create_dir(root.join("corpus")).unwrap();
    for (file, bytes) in [15_000, 9_000, 170_000, 0, 30_000].into_iter().enumerate() {
        fs::write(root.join(format!("corpus/{file}.txt")), text(file as u64, bytes)).unwrap();
    }
    let mut lines: String = (5..60).map(|line| format!("{{\"text\": \"{} \\ud83d\"}}\n", text(line, 700))).collect();
    lines.insert_str(lines.len() / 2, "\n{}\n{\"text\": null}\n{");
    fs::write(root.join("corpus/invalid.txt"), [text(7, 30_000).as_bytes(), b"\xff"].concat()).unwrap();
    fs::write(root.join("corpus/z.jsonl"), &lines).unwrap();
    fs::write(root.join("corpus/z.jsonl.gz"), compressed(&[lines.as_bytes()], "gz")).unwrap();
    let config = data_config(root);
    (folder, config)
}

/// Returns a volume with conversations for a dozen parts. Some conversations are cut, and some are bad records.
fn conversations() -> (TempDir, DataConfig) {
    let folder = TempDir::new().unwrap();
    let root = folder.path().to_owned();
    ["corpus", "model"].iter().for_each(|name| fs::create_dir(root.join(name)).unwrap());
    let record = |line: u64| {
        let role = if line % 7 == 3 { "oops" } else { "assistant" };
        let content = text(line, 100 + 40 * (line as usize % 10));
        let turn = [json!({"role": "user", "content": "the road"}), json!({"role": role, "content": content})];
        let messages = [turn.clone(), turn].concat();
        format!("{}\n", json!({"messages": messages}))
    };
    fs::write(root.join("corpus/chat.jsonl"), (0..150).map(record).collect::<String>()).unwrap();
    let template = "{% for m in messages %}{% if m.role == 'oops' %}{{ raise_exception('oops') }}{% endif %}\
                    {{ '[BOT] ' if m.role == 'assistant' else 'coach ' }}{{ m.content }} [EOT] {% endfor %}\
                    {% if add_generation_prompt %}[BOT] {% endif %}";
    fs::write(root.join("model/chat_template.jinja"), template).unwrap();
    let special = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let names = ["[BOT]", "[EOT]", "[PAD]"];
    let all = names.iter().chain(&WORDS).chain(&["[UNK]"]).enumerate();
    let vocab: serde_json::Map<String, Value> = all.map(|(id, name)| ((*name).to_owned(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": names.iter().enumerate().map(special).collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    });
    fs::write(root.join("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = data_config(root);
    (folder, config)
}

/// Returns the data configuration of a volume of these tests.
fn data_config(root: PathBuf) -> DataConfig {
    if root.join("model").exists() {
        let tokenizer = TokenizerSource::File { path: "model/tokenizer.json".into() };
        let mut config = DataConfig::new(root, "corpus/*", 64, tokenizer);
        config.sources[0].format = DocumentFormat::Chat;
        config.conversations.on_long = OnLongConversation::Truncate;
        config.on_bad_record = OnBadRecord::Skip;
        return config;
    }
    let tokenizer = TokenizerSource::Train { vocab_size: 320 };
    let on_bad_record = OnBadRecord::Skip;
    DataConfig {
        held_out: HeldOut::LastSequences(0.1),
        on_bad_record,
        ..DataConfig::new(root, "corpus/*", 64, tokenizer)
    }
}

fn text(seed: u64, bytes: usize) -> String {
    let word = |index| WORDS[crate::order::sequence_at(seed, index, 10) as usize];
    let mut text: String = (0..).map(word).flat_map(|word| [word, " "]).flat_map(str::chars).take(bytes).collect();
    text.shrink_to_fit();
    text
}

fn run(config: &DataConfig) -> PreparedCorpus {
    prepare_in_parts(config, PART_BYTES, &mut |_| {}).unwrap()
}

/// Returns the names and contents of all files of the cache, without the contents of `meta.json`, which contains
/// modification times.
fn contents(config: &DataConfig) -> Vec<(PathBuf, Vec<u8>)> {
    fn visit(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { visit(&path, into) } else { into.push(path) }
        }
    }
    let mut paths = Vec::new();
    visit(&config.cache_root, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = if path.ends_with("meta.json") { Vec::new() } else { fs::read(&path).unwrap() };
        (path.strip_prefix(&config.cache_root).unwrap().to_owned(), bytes)
    };
    paths.into_iter().map(read).collect()
}

fn parts(config: &DataConfig) -> usize {
    let folders = fs::read_dir(&config.cache_root).into_iter().flatten().flatten();
    folders.flat_map(|folder| fs::read_dir(folder.path().join("parts")).into_iter().flatten()).count()
}

/// The process that [`resumes_after_its_last_part`] starts. It aborts at a given call of `progress`, without cleanup.
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
    prepare_in_parts(&data_config(root.into()), PART_BYTES, progress).unwrap();
}

#[test]
fn an_interrupted_run_resumes_after_its_last_part() {
    resumes_after_its_last_part(volume);
}

#[test]
fn an_interrupted_run_over_conversations_resumes_after_its_last_part() {
    resumes_after_its_last_part(conversations);
}

fn resumes_after_its_last_part(volume: fn() -> (TempDir, DataConfig)) {
    let (_folder, undisturbed) = volume();
    let mut calls = Vec::new();
    let prepared = prepare_in_parts(&undisturbed, PART_BYTES, &mut |progress| calls.push(progress.phase)).unwrap();
    let tokenising = calls.iter().filter(|&&phase| phase == "tokenising").count();
    assert!(tokenising > 8, "{calls:?}");

    let first = calls.iter().position(|&phase| phase == "tokenising").unwrap();
    // Each run has a fresh volume and is killed at another call of `progress`: one run during the hashing, one run
    // during the training of the tokenizer, and one run at every second report of the tokenising.
    for at in [1, first].into_iter().chain((first + 1..=calls.len()).step_by(2)) {
        let (_folder, config) = volume();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED_RUN, "--ignored"])
            .env("DATA_TEST_ROOT", &config.volume_root)
            .env("DATA_TEST_KILL_AT", at.to_string())
            .output()
            .unwrap()
            .status;
        assert!(!status.success(), "killed at call {at} of {}", calls.len());
        let parts_before = parts(&config);
        let mut resumed_at = None;
        let again = prepare_in_parts(&config, PART_BYTES, &mut |progress| {
            if progress.phase == "tokenising" {
                resumed_at.get_or_insert(progress.bytes_done);
            }
        });
        assert_eq!(again.unwrap(), prepared);
        assert!(contents(&config) == contents(&undisturbed), "killed at call {at}");
        if at > first + 1 {
            assert!(parts_before > 0, "killed at call {at} after no part");
            assert!(
                resumed_at.is_none_or(|done| done > parts_before as u64 * PART_BYTES),
                "started again after {parts_before} parts"
            );
        }
    }
}

#[test]
fn a_part_of_compressed_text_is_bounded() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("corpus")).unwrap();
    let text = compressed(&["coach ".repeat(400_000).as_bytes()], "zst");
    fs::write(folder.path().join("corpus/a.txt.zst"), &text).unwrap();
    let config = data_config(folder.path().to_owned());
    let (corpus, tokenizer) = find_sources(&config).unwrap();
    let cache = config.cache_root.join("key");
    let builder = CacheBuilder { corpus: &corpus, tokenizer: &tokenizer, folder: &cache, part_bytes: PART_BYTES };
    let tokens = builder.run(&mut |_| {}).unwrap().tokens;
    assert!((text.len() as u64) < PART_BYTES && tokens > 20 * PART_BYTES);
    assert_eq!(parts(&config), 3, "a part has at least the tokens of one batch of texts");
}

#[test]
fn the_result_does_not_depend_on_the_parts() {
    let (_one, in_parts) = volume();
    let (_other, at_once) = volume();
    assert_eq!(run(&in_parts), prepare(&at_once, &mut |_| {}).unwrap());
    assert!(contents(&in_parts) == contents(&at_once));
}

#[test]
fn concurrent_runs_are_safe() {
    let (_folder, reference) = volume();
    let prepared = run(&reference);
    for _ in 0..3 {
        let (_folder, config) = volume();
        thread::scope(|scope| {
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&config))).collect();
            for run in runs {
                assert_eq!(run.join().unwrap(), prepared);
            }
        });
        run(&config);
        assert!(contents(&config) == contents(&reference));
    }
}

fn touch(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().append(true).open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Returns the prepared corpus, and the phases that the run reports.
fn phases_reported(config: &DataConfig) -> (PreparedCorpus, Vec<&'static str>) {
    let mut phases = Vec::new();
    let prepared = prepare_in_parts(config, PART_BYTES, &mut |progress| phases.push(progress.phase)).unwrap();
    phases.dedup();
    (prepared, phases)
}

#[test]
fn only_changed_files_are_read() {
    let (_folder, mut config) = volume();
    let (first, all) = phases_reported(&config);
    assert_eq!(all, ["hashing the corpus", "training the tokenizer", "tokenising"]);
    assert_eq!(phases_reported(&config), (first.clone(), vec![]));

    // The cache doesn't depend on the settings by which tokens are cut into sequences.
    config.sequence_length = 32;
    config.packing = false;
    config.held_out = HeldOut::LastSequences(0.2);
    assert_eq!(phases_reported(&config), (first.clone(), vec![]));

    // A file with another time and the same contents is hashed once. The next run reuses the recorded hash.
    let file = config.volume_root.join("corpus/1.txt");
    touch(&file, 1_000_000_000);
    assert_eq!(phases_reported(&config), (first.clone(), vec!["hashing the corpus"]));
    assert_eq!(phases_reported(&config), (first.clone(), vec![]));

    // A file with other contents but the same size and time is read again, both after a rename and after a write to it.
    let another = config.volume_root.join("another");
    fs::write(&another, text(98, 9_000)).unwrap();
    touch(&another, 1_000_000_000);
    fs::rename(&another, &file).unwrap();
    let (replaced, all) = phases_reported(&config);
    assert_eq!(all.len(), 3);
    assert_ne!(replaced.corpus_hash, first.corpus_hash);
    fs::write(&file, text(99, 9_000)).unwrap();
    touch(&file, 1_000_000_000);
    let (changed, all) = phases_reported(&config);
    assert_eq!(all.len(), 3);
    assert_ne!((&changed.folder, &changed.corpus_hash), (&first.folder, &first.corpus_hash));

    // After the original contents return, both caches still exist.
    fs::write(&file, text(1, 9_000)).unwrap();
    touch(&file, 1_000_000_002);
    assert_eq!(phases_reported(&config), (first.clone(), vec!["hashing the corpus"]));

    // Each tokenizer has a separate cache of the same corpus.
    config.tokenizer = TokenizerSource::Train { vocab_size: 300 };
    let (smaller, all) = phases_reported(&config);
    assert_eq!(all, ["training the tokenizer", "tokenising"]);
    assert_eq!((smaller.corpus_hash == first.corpus_hash, smaller.folder == first.folder), (true, false));
}

#[test]
fn a_file_that_changes_while_read_is_an_error() {
    let (_folder, config) = volume();
    let file = config.volume_root.join("corpus/0.txt");
    let progress = &mut |progress: PrepareProgress| {
        if progress.phase == "tokenising" {
            fs::write(&file, "more").unwrap();
        }
    };
    let error = prepare_in_parts(&config, PART_BYTES, progress).unwrap_err();
    assert!(matches!(&error, DataError::Changed { path } if *path == file), "{error}");
    assert_eq!(fs::read_dir(&config.cache_root).unwrap().count(), 0);
    run(&config);
}
