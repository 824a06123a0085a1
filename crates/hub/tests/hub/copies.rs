//! Tests copies of models and tokenizers on a volume.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use stagecoach_hub::{CommitCopy, FetchProgress, HubError, RepoPart};
use stagecoach_test_hub::{File, Hub};

use crate::{Reader, Setup, named, noise};

const MODEL: &str = "models/org/tiny";
const INDEX: &str = r#"{"weight_map": {"a": "w-1.safetensors", "b": "w-2.safetensors", "c": "w-1.safetensors"}}"#;

/// Returns the files of a model in two shards, and files that no part needs.
fn files() -> Vec<(&'static str, File)> {
    vec![
        ("config.json", File::small("{}")),
        ("tokenizer.json", File::large("tokens")),
        ("special_tokens_map.json", File::small("")),
        ("model.safetensors.index.json", File::small(INDEX)),
        ("w-1.safetensors", File::large(noise(3000))),
        ("w-2.safetensors", File::large(noise(2000))),
        ("w-3.safetensors", File::large(noise(10))),
        ("pytorch_model.bin", File::large(noise(10))),
        ("README.md", File::small("a model")),
        ("code/tokenizer.json", File::small("others")),
        ("code/config.json", File::small("{}")),
    ]
}

fn fetch(
    reader: &Reader,
    root: &Path,
    commit: &str,
    part: RepoPart<'_>,
) -> (Result<(), HubError>, CommitCopy, Vec<FetchProgress>) {
    let copy = CommitCopy::new(root, &named(MODEL), commit);
    let mut progress = Vec::new();
    let fetched = copy.fetch(&reader.client, part, &mut |step| progress.push(step));
    (fetched, copy, progress)
}

/// Returns the sorted names of the files in a folder, without hidden files.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

#[test]
fn a_part_has_its_files_alone() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let commit = hub.put(MODEL, "main", files());
    let reader = Reader::new(&hub);
    let folder = root.path().join("org--tiny").join(&commit);
    let (fetched, copy, _) = fetch(&reader, root.path(), &commit, RepoPart::Settings);
    fetched.unwrap();
    assert_eq!(copy.folder(), folder);
    assert_eq!(names(&folder), ["config.json", "special_tokens_map.json", "tokenizer.json"]);
    assert!(copy.has(RepoPart::Settings) && !copy.has(RepoPart::Model));

    let (fetched, copy, progress) = fetch(&reader, root.path(), &commit, RepoPart::Model);
    fetched.unwrap();
    let expected = [
        "config.json",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "w-1.safetensors",
        "w-2.safetensors",
    ];
    assert_eq!(names(&folder), expected);
    assert_eq!(fs::read(folder.join("w-1.safetensors")).unwrap(), noise(3000));
    let total = 2 + 6 + INDEX.len() as u64 + 5000;
    assert_eq!(progress.last(), Some(&FetchProgress { bytes_done: total, bytes_total: total }));
    assert!(copy.has(RepoPart::Model));

    let tokenizer = RepoPart::Tokenizer("code/tokenizer.json");
    assert!(!copy.has(tokenizer));
    fetch(&reader, root.path(), &commit, tokenizer).0.unwrap();
    assert_eq!(names(&folder.join("code")), ["config.json", "tokenizer.json"]);

    hub.take_requests();
    for part in [RepoPart::Settings, RepoPart::Model, tokenizer] {
        fetch(&reader, root.path(), &commit, part).0.unwrap();
    }
    assert_eq!(hub.take_requests().len(), 0, "a complete copy needs no hub");
    fs::write(folder.join("w-2.safetensors"), "cut").unwrap();
    assert!(!copy.has(RepoPart::Model));
    fetch(&reader, root.path(), &commit, RepoPart::Model).0.unwrap();
    assert_eq!(fs::read(folder.join("w-2.safetensors")).unwrap(), noise(2000));
}

#[test]
fn a_single_file_comes_before_shards() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let single = ("model.safetensors", File::large("all"));
    let commit = hub.put(MODEL, "main", files().into_iter().chain([single]));
    let (fetched, copy, _) = fetch(&Reader::new(&hub), root.path(), &commit, RepoPart::Model);
    fetched.unwrap();
    let weights: Vec<String> = names(copy.folder()).into_iter().filter(|name| name.contains(".safetensors")).collect();
    assert_eq!(weights, ["model.safetensors"]);
}

#[test]
fn an_interrupted_download_continues_with_the_next_file() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let commit = hub.put(MODEL, "main", files());
    let reader = Reader::new(&hub);
    hub.faults(|faults| {
        faults.truncate_at = Some(2500);
        faults.truncations = 1000;
        faults.ignores_ranges = true;
    });
    let (fetched, copy, _) = fetch(&reader, root.path(), &commit, RepoPart::Model);
    assert!(fetched.unwrap_err().is_temporary());
    assert!(!copy.has(RepoPart::Model));
    assert!(!names(copy.folder()).contains(&"w-1.safetensors".to_owned()), "no file is incomplete");
    assert!(names(copy.folder()).iter().all(|name| !name.ends_with(".partial")));
    let old = copy.folder().join("w-1.safetensors.0123456789abcdef.partial");
    fs::write(&old, "of a process that was killed").unwrap();
    let a_while_ago = SystemTime::now() - Duration::from_secs(100);
    fs::File::options().write(true).open(&old).unwrap().set_modified(a_while_ago).unwrap();
    let young = copy.folder().join("w-2.safetensors.0123456789abcdef.partial");
    fs::write(&young, "of a process that has not locked it yet").unwrap();
    let locked = copy.folder().join("w-2.safetensors.fedcba9876543210.partial");
    let writer = fs::File::create(&locked).unwrap();
    writer.set_modified(a_while_ago).unwrap();
    writer.lock().unwrap();

    hub.faults(|faults| (faults.truncations, faults.ignores_ranges) = (0, false));
    hub.take_requests();
    fetch(&reader, root.path(), &commit, RepoPart::Model).0.unwrap();
    assert!(copy.has(RepoPart::Model) && !old.exists() && young.exists() && locked.exists());
    let again = hub.take_requests().into_iter().filter(|request| request.path.contains("tokenizer.json")).count();
    assert_eq!(again, 0, "files that the copy already has are not downloaded again");
}

#[test]
fn bytes_that_differ_leave_the_folder_unchanged() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let commit = hub.put(MODEL, "main", files());
    let folder = root.path().join("org--tiny").join(&commit);
    hub.faults(|faults| faults.flipped_byte = Some(1));
    let fetch_damaged = || {
        let (fetched, ..) = fetch(&Reader::new(&hub), root.path(), &commit, RepoPart::Model);
        assert!(matches!(fetched, Err(HubError::Differs { .. })), "{fetched:?}");
    };
    fetch_damaged();
    assert_eq!(names(&folder), Vec::<String>::new());
    fs::write(folder.join("config.json"), "old").unwrap();
    fetch_damaged();
    assert_eq!(names(&folder), ["config.json"]);
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"old");
}

#[test]
fn many_may_fetch_one_copy() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let commit = hub.put(MODEL, "main", files());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fetch(&Reader::new(&hub), root.path(), &commit, RepoPart::Model).0.unwrap());
        }
    });
    let copy = CommitCopy::new(root.path(), &named(MODEL), &commit);
    assert!(copy.has(RepoPart::Model));
    assert_eq!(names(copy.folder()).len(), 6, "{:?}", names(copy.folder()));
}

#[test]
fn what_a_repository_lacks_is_named_with_what_it_has() {
    let root = tempfile::tempdir().unwrap();
    let says = |names: &[(&'static str, &str)], part: RepoPart<'_>| {
        let hub = Hub::start();
        let commit = hub.put(MODEL, "main", names.iter().map(|(name, text)| (*name, File::small(*text))));
        let (fetched, copy, _) = fetch(&Reader::new(&hub), root.path(), &commit, part);
        assert!(!copy.has(part));
        fetched.unwrap_err().to_string().replace(&commit, "C")
    };
    let pickled = [("config.json", "{}"), ("a.txt", ""), ("b.txt", ""), ("pytorch_model.bin", "")];
    let expected = "the model org/tiny has no weights in safetensors at commit C: it has pytorch_model.bin, a.txt, \
                    b.txt and 1 more: load it with transformers, and save it with save_pretrained";
    assert_eq!(says(&pickled, RepoPart::Model), expected);
    let expected = "the model org/tiny has no config.json at commit C: it has tiny.Q4.gguf, README.md";
    assert_eq!(says(&[("README.md", ""), ("tiny.Q4.gguf", "")], RepoPart::Model), expected);
    let expected = "the model org/tiny has no tokenizer.json at commit C: it has config.json, tokenizer.model";
    let sentencepiece = [("config.json", "{}"), ("tokenizer.model", "")];
    assert_eq!(says(&sentencepiece, RepoPart::Tokenizer("tokenizer.json")), expected);
    let index = [("config.json", "{}"), ("model.safetensors.index.json", INDEX)];
    let expected = "the model org/tiny has no w-1.safetensors (a shard of its index) at commit C: it has \
                    config.json, model.safetensors.index.json";
    assert_eq!(says(&index, RepoPart::Model), expected);
    let outside = [("config.json", "{}"), ("model.safetensors.index.json", r#"{"weight_map": {"a": "../../a"}}"#)];
    assert!(says(&outside, RepoPart::Model).contains("has no ../../a (a shard of its index)"));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_copy_of_a_gated_model_needs_a_token() {
    let (hub, root) = (Hub::start(), tempfile::tempdir().unwrap());
    let commit = hub.put(MODEL, "main", files());
    hub.gate(MODEL, "hf_accepted");
    let (fetched, copy, _) = fetch(&Reader::new(&hub), root.path(), &commit, RepoPart::Model);
    assert!(matches!(fetched, Err(HubError::Gated { .. })), "{fetched:?}");
    assert!(!copy.folder().join("config.json").exists() && !copy.has(RepoPart::Model));
    let reader = Setup { token: Some("hf_accepted"), ..Setup::default() }.client(&hub.endpoint());
    fetch(&reader, root.path(), &commit, RepoPart::Model).0.unwrap();
}
