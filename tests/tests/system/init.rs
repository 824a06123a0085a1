//! `stagecoach init` writes a job that runs without changes, and refuses bad input in one sentence.

use std::path::Path;
use std::process::{Command, Output};

use stagecoach_tests::fixture::copy;
use stagecoach_tests::{Launched, corpus, hugging_face, stagecoach};

fn init(workspace: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(stagecoach());
    command.arg("init").arg(workspace.join("first.yaml")).arg("--workspace").arg(workspace).args(arguments);
    command.output().unwrap()
}

/// Asserts that `init` fails with these words and writes no file.
fn refused(workspace: &Path, arguments: &[&str], words: &[&str]) {
    let before = std::fs::read(workspace.join("first.yaml")).ok();
    let output = init(workspace, arguments);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{printed}");
    words.iter().for_each(|words| assert!(printed.contains(words), "no {words:?} in {printed}"));
    assert!(!printed.contains("panicked"), "{printed}");
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
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let file = path.join("first.yaml");
    let command = format!("stagecoach run {} --workspace {}", file.display(), path.display());
    for words in [" of text in 1 file: corpus/letters/*.txt", " of memory", &command] {
        assert!(printed.contains(words), "no {words:?} in {printed}");
    }
    let set = ["--set", "training.steps=3"];
    let outcome = Launched::start_file(path, &file, path.join("first"), &set).finish(path);
    outcome.hashes();
    assert_eq!(outcome.result.unwrap()["steps"], 3);

    refused(path, &[], &["first.yaml exists: give another file's name, or --force to replace it"]);
    // the corpus does not include files that the run has created
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
    let printed = String::from_utf8(output.stdout).unwrap();
    for words in [
        "found 40.00 kB of text in 1 file: corpus/*.jsonl",
        "the text is the field \"content\", which has 93% of the bytes; there are also \"url\" (6%), \"lang\" (1%)",
    ] {
        assert!(printed.contains(words), "no {words:?} in {printed}");
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
    refused(&path.join("nowhere"), &[], &["nowhere is not a folder"]);
}

/// Copies the tiny model to the folder `name` of the workspace, and returns the path of that folder.
fn model(workspace: &Path, name: &str) -> String {
    let folder = workspace.join(name);
    copy(&hugging_face(), &folder);
    folder.display().to_string()
}

#[test]
fn a_job_that_fine_tunes_a_model_trains_as_it_was_written() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path();
    let from = model(path, "models/tiny");
    std::fs::create_dir(path.join("data")).unwrap();
    std::fs::write(path.join("data/all.jsonl"), corpus::jsonl(300, 60, 3)).unwrap();
    let output = init(path, &["--from", &from]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for words in
        [" of text in 1 file: data/*.jsonl", "found the model models/tiny: ", " thousand parameters in 2 layers"]
    {
        assert!(printed.contains(words), "no {words:?} in {printed}");
    }
    let file = path.join("first.yaml");
    let set = ["--set", "training.steps=3"];
    let outcome = Launched::start_file(path, &file, path.join("first"), &set).finish(path);
    outcome.hashes();
    assert_eq!(outcome.result.unwrap()["steps"], 3);

    // a corpus of prompts with completions, or of conversations
    let read = || std::fs::read_to_string(path.join("first.yaml")).unwrap();
    let pair = format!("{{\"prompt\": \"ka\", \"completion\": \"{}\"}}\n", "lo mi ".repeat(50));
    std::fs::write(path.join("data/all.jsonl"), pair.repeat(40)).unwrap();
    let output = init(path, &["--from", &from, "--force"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.contains("the records are pairs of a prompt and a completion: the completions are trained on"),
        "{printed}"
    );
    assert!(read().contains("    format: PromptCompletion  # ") && !read().contains("textField"), "{}", read());
    let output = init(path, &["--force"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("and this job trains on \"completion\" alone"), "{printed}");
    let messages = format!("[{{\"role\": \"user\", \"content\": \"{}\"}}]", "lo mi ".repeat(50));
    let conversation = format!("{{\"id\": \"abcdefgh\", \"messages\": {messages}}}\n");
    std::fs::write(path.join("data/all.jsonl"), conversation.repeat(200)).unwrap();
    let output = init(path, &["--from", &from, "--force"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("the records are conversations in the field \"messages\""), "{printed}");
    assert!(read().contains("    format: Chat  # ") && read().contains("onLongConversation: Truncate"), "{}", read());
    std::fs::write(path.join("data/all.jsonl"), format!("{{\"messages\": {messages}}}\n")).unwrap();
    refused(path, &["--force"], &["there is no text that can be trained on"]);
}

#[test]
fn a_model_that_no_job_can_start_from_is_refused() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path();
    corpus::write(path);
    let from = model(path, "tiny");
    let outside = hugging_face().display().to_string();
    refused(path, &["--from", &outside], &["is not in a folder below the workspace", "copy it there"]);
    refused(path, &["--from", "hf://owner/name"], &["--from hf://owner/name is a URI, expected a folder below"]);
    refused(path, &["--from", &path.join("no").display().to_string()], &["there is no folder"]);
    refused(path, &["--from", &path.join("corpus").display().to_string()], &["corpus/config.json: could not be read"]);
    let tokenizer = path.join("tiny/tokenizer.json");
    let text = std::fs::read_to_string(&tokenizer).unwrap();
    std::fs::remove_file(path.join("tiny/tokenizer_config.json")).unwrap();
    let config = path.join("tiny/config.json");
    let named = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, named.replace("\"eos_token_id\": 1,", "")).unwrap();
    std::fs::write(&tokenizer, text.replace("[EOT]", "[END]")).unwrap();
    refused(path, &["--from", &from], &["tiny/tokenizer.json names no token that ends documents"]);
    std::fs::remove_file(&tokenizer).unwrap();
    refused(path, &["--from", &from], &["tiny/tokenizer.json: there is no such file"]);
    for file in std::fs::read_dir(path.join("tiny")).unwrap().flatten() {
        if file.file_name().to_string_lossy().contains("safetensors") {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    refused(path, &["--from", &from], &["has no weights in safetensors"]);
}
