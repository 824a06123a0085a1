//! `stagecoach init` writes a job that runs as it is, and refuses bad input in one sentence.

use std::path::Path;
use std::process::{Command, Output};

use stagecoach_tests::{Launched, corpus, stagecoach};

fn init(workspace: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(stagecoach());
    command.arg("init").arg(workspace.join("first.yaml")).arg("--workspace").arg(workspace).args(arguments);
    command.output().unwrap()
}

/// Asserts that `init` is refused with these words and writes no file.
fn refused(workspace: &Path, arguments: &[&str], words: &[&str]) {
    let before = std::fs::read(workspace.join("first.yaml")).ok();
    let output = init(workspace, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    words.iter().for_each(|words| assert!(said.contains(words), "no {words:?} in {said}"));
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(std::fs::read(workspace.join("first.yaml")).ok(), before);
}

#[test]
fn the_job_trains_as_it_was_written() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path();
    std::fs::create_dir_all(path.join("corpus/letters")).unwrap();
    let text = corpus::jsonl(300, 60, 3).replace("{\"text\": \"", "").replace("\"}", "");
    std::fs::write(path.join("corpus/letters/all.txt"), text).unwrap();
    let output = init(path, &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let file = path.join("first.yaml");
    let command = format!("stagecoach run {} --workspace {}", file.display(), path.display());
    for words in [" of text in 1 file: corpus/letters/*.txt", " of memory", &command] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let set = ["--set", "training.steps=3"];
    let outcome = Launched::start_file(path, &file, path.join("first"), &set).finish(path);
    outcome.hashes();
    assert_eq!(outcome.result.unwrap()["steps"], 3);

    refused(path, &[], &["first.yaml exists: give another file's name, or --force to replace it"]);
    // files that the run has made are no corpus
    let output = init(path, &["--force", "--name", "other", "--stages", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("name: \"other\"") && written.contains("stages: 1 "), "{written}");
    assert!(!written.contains("jsonl"), "{written}");
}

#[test]
fn the_field_with_most_text_is_taken_and_the_others_are_named() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path();
    std::fs::create_dir(path.join("corpus")).unwrap();
    let line = format!("{{\"content\": \"{}\", \"url\": \"http://x.org\", \"lang\": \"en\"}}\n", "a b ".repeat(50));
    std::fs::write(path.join("corpus/web.jsonl"), line.repeat(200)).unwrap();
    let output = init(path, &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    for words in [
        "found 40.00 kB of text in 1 file: corpus/*.jsonl",
        "the text is the field \"content\", which has 93% of the bytes; there are also \"url\" (6%), \"lang\" (1%)",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert!(std::fs::read_to_string(path.join("first.yaml")).unwrap().contains("textField: \"content\""));
}

#[test]
fn without_a_corpus_or_with_a_bad_name_it_says_what_to_do() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path();
    let corpus_folder = path.join("corpus").display().to_string();
    refused(path, &[], &["there is no text below", "put .txt files (one document), .jsonl files", &corpus_folder]);
    std::fs::create_dir(path.join("corpus")).unwrap();
    std::fs::write(path.join("corpus/measured.jsonl"), "{\"step\": 1}\n").unwrap();
    refused(path, &[], &["no text that can be trained on (corpus/measured.jsonl has no field of text)"]);
    std::fs::write(path.join("corpus/short.txt"), "short").unwrap();
    refused(path, &[], &["only 5 bytes of text, and 1000 are needed at least"]);
    corpus::write(path);
    refused(path, &["--name", "My Job"], &["metadata.name", "\"My Job\" is not a DNS-1035 label"]);
    refused(path, &["--stages", "0"], &["--stages"]);
    refused(&path.join("nowhere"), &[], &["nowhere is no folder"]);
}
