//! Bad input causes one clear sentence and the documented exit code, and leaves no incomplete files.

use std::path::Path;
use std::process::Command;

use stagecoach_api::job::TOKEN_CACHE;
use stagecoach_tests::{TestJob, corpus, refusal, run_command, stagecoach, text};

/// Writes `yaml` as the job file of `workspace`, and runs it. Returns the exit code and the whole output.
fn run(workspace: &Path, yaml: &str, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let file = workspace.join("job.yaml");
    std::fs::write(&file, yaml).unwrap();
    let mut command = Command::new(stagecoach());
    command.arg("run").arg(file).arg("--workspace").arg(workspace).envs(env.iter().copied());
    run_command(&mut command)
}

/// Asserts the exit code, and that the output contains all `words`. Asserts that the run left neither a result, a last
/// checkpoint nor an incomplete token cache.
fn refused(name: &str, workspace: &Path, (code, printed): (Option<i32>, String), expected: i32, words: &[&str]) {
    assert_eq!(code, Some(expected), "{name}:\n{printed}");
    for word in words {
        assert!(printed.contains(word), "{name}: no {word:?} in\n{printed}");
    }
    assert!(!printed.contains("panicked"), "{name}:\n{printed}");
    for left in ["small/result.json", "small/checkpoints/step-00000020"] {
        assert!(!workspace.join(left).exists(), "{name} left {left}");
    }
    // a token cache with this file is complete
    for cache in std::fs::read_dir(workspace.join(TOKEN_CACHE)).into_iter().flatten().flatten() {
        assert!(cache.path().join("meta.json").is_file(), "{name} left {}", cache.path().display());
    }
}

#[test]
fn a_job_that_makes_no_sense_names_the_field_and_the_remedy() {
    let yaml = TestJob::default().yaml();
    let cases: &[(&str, String, &[&str])] = &[
        (
            "a batch that does not divide",
            yaml.replace("microbatches: 4", "microbatches: 5"),
            &["globalBatchSize", "12", "5"],
        ),
        (
            "heads that do not divide",
            yaml.replace("numKeyValueHeads: 2", "numKeyValueHeads: 3"),
            &["numKeyValueHeads", "3"],
        ),
        (
            "a partition that does not add up",
            TestJob { partition: Some(vec![1, 1, 1]), ..TestJob::default() }.yaml(),
            &["partition", "3", "4"],
        ),
        ("a schedule that does not exist", yaml.replace("1F1B", "1F2B"), &["1F2B", "1F1B"]),
        ("a misspelt field", yaml.replace("warmupSteps", "warmupStep"), &["job.yaml:22:", "warmupStep", "warmupSteps"]),
        (
            "weights from nowhere",
            TestJob { extra: "  checkpoint: {initFrom: {path: elsewhere}}\n".into(), ..TestJob::default() }.yaml(),
            &["spec.checkpoint.initFrom.path", "elsewhere", "no such folder"],
        ),
        (
            "another number of chunks than the schedule has",
            TestJob { schedule: "ZBVZeroBubble", ..TestJob::default() }.yaml(),
            &[
                "spec.pipeline.virtualStages",
                "is 1, but ZBVZeroBubble has two chunks per stage: remove virtualStages or set it to 2",
            ],
        ),
        (
            "less memory than the model needs",
            TestJob { schedule: "Interleaved1F1B", virtual_stages: 2, ..TestJob::default() }
                .yaml()
                .replace("    virtualStages", "    memoryLimit: 100k\n    virtualStages"),
            &["spec.pipeline.partition: stage", "more than the limit of 100000", "raise the limit to"],
        ),
        ("no YAML", "spec: [".into(), &["job.yaml:1:"]),
        ("far too large", format!("{yaml}#{}", " ".repeat(2 << 20)), &["expected a job file of at most 1572864 bytes"]),
        (
            "a GPU where there is none",
            yaml.replace("  training:\n", "  training:\n    device: Cuda\n"),
            &[
                "spec.training.device is Cuda",
                "finds no usable GPU (there is no NVIDIA driver here: /dev/nvidiactl does not exist)",
            ],
        ),
        (
            "a folder as tokenizer",
            yaml.replace("{type: Train, train: {vocabSize: 300}}", "{type: File, file: {path: corpus}}"),
            &["the tokenizer", "corpus: this is a folder: name the tokenizer.json in it"],
        ),
    ];
    for (name, yaml, words) in cases {
        let workspace = corpus::workspace();
        let got = run(workspace.path(), yaml, &[("CUDA_VISIBLE_DEVICES", "")]);
        refused(name, workspace.path(), got, 78, words);
    }
}

/// A schedule in a file determines the numbers of chunks and microbatches. This test checks that a job with other
/// numbers is refused.
#[test]
fn a_schedule_in_a_file_for_another_job_is_refused_with_the_job_that_it_is_for() {
    let v = "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";
    let cases: &[(&str, &str, usize, &[&str])] = &[
        (v, "4", 2, &["it is for 2 microbatches, and spec.training.microbatches is 4: set that to 2"]),
        (v, "2", 1, &["it has 4 chunks, and 2 stages with spec.pipeline.virtualStages 1 have 2: set that to 2"]),
        ("0F0,2F0,2B0,0B0\n1F0,1B0\n", "1", 1, &["it has 3 chunks", "the same number of chunks for every stage"]),
        ("0F0,0B0\n", "1", 1, &["the CSV has 1 lines but the pipeline has 2 ranks: write one line per rank"]),
        ("0F0,0B0\n1F0,1X0\n", "1", 1, &["line 2, column 2: `1X0` is not an action"]),
    ];
    for (csv, microbatches, virtual_stages, words) in cases {
        let workspace = corpus::workspace();
        std::fs::write(workspace.path().join("schedule.csv"), csv).unwrap();
        let job = TestJob { stages: 2, schedule: "Csv, csv: {path: schedule.csv}", ..TestJob::default() };
        let yaml = TestJob { virtual_stages: *virtual_stages, ..job }.yaml();
        let yaml = yaml.replace("microbatches: 4", &format!("microbatches: {microbatches}"));
        let printed = run(workspace.path(), &yaml, &[]);
        refused(
            csv,
            workspace.path(),
            printed,
            78,
            &[words, &["spec.pipeline.schedule.csv.path", "schedule.csv"][..]].concat(),
        );
    }
}

#[test]
fn a_corpus_that_cannot_be_used_names_the_file() {
    let yaml = TestJob::default().yaml();
    let text = |path: &str| yaml.replace("corpus/small.jsonl", path);
    type Make = fn(&Path);
    let cases: &[(&str, String, Make, i32, &[&str])] = &[
        ("no such file", text("corpus/none.txt"), |_| {}, 78, &["corpus/none.txt"]),
        ("an empty corpus", text("e.txt"), |w| std::fs::write(w.join("e.txt"), "").unwrap(), 78, &["empty"]),
        ("too short", text("s.txt"), |w| std::fs::write(w.join("s.txt"), "one two").unwrap(), 78, &["sequenceLength"]),
        (
            "invalid UTF-8",
            text("u.txt"),
            |w| std::fs::write(w.join("u.txt"), b"abc\xff\xfe").unwrap(),
            78,
            &["u.txt", "UTF-8", "3"],
        ),
        (
            "no such field",
            text("f.jsonl"),
            |w| std::fs::write(w.join("f.jsonl"), "{\"body\": \"x\"}\n").unwrap(),
            78,
            &["f.jsonl", "text", "1"],
        ),
    ];
    for (name, yaml, make, code, words) in cases {
        let workspace = corpus::workspace();
        make(workspace.path());
        refused(name, workspace.path(), run(workspace.path(), yaml, &[]), *code, words);
    }
}

#[test]
fn a_missing_job_file_is_named() {
    let (code, printed) = refusal(&["run", "nowhere/job.yaml"]);
    assert!(code == Some(78) && printed.contains("nowhere/job.yaml"), "{printed}");
}

#[test]
fn a_workspace_that_is_no_folder_is_named_and_not_created() {
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let misspelt = workspace.path().join("workspcae");
    for folder in [&file, &file.join("w"), &misspelt] {
        let (code, printed) = refusal(&["run", text(&file), "--workspace", text(folder)]);
        assert_eq!(code, Some(78));
        assert!(printed.contains(&format!("{} is not a folder", folder.display())), "{printed}");
    }
    assert!(!misspelt.exists());
}

#[test]
fn a_world_size_that_disagrees_with_the_job_is_refused() {
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let output = Command::new(stagecoach())
        .arg("stage")
        .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("RANK", "0"), ("WORLD_SIZE", "2")])
        .envs([("STAGECOACH_JOB", "small"), ("STAGECOACH_JOB_UID", "u"), ("STAGECOACH_ATTEMPT", "1")])
        .envs([("POD_IP", "127.0.0.1"), ("POD_UID", "p")])
        .env("STAGECOACH_CONFIG", &file)
        .env("STAGECOACH_WORKSPACE", workspace.path())
        .env("STAGECOACH_TERMINATION_LOG", workspace.path().join("termination-message"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    let termination_message = std::fs::read_to_string(workspace.path().join("termination-message")).unwrap();
    for printed in [String::from_utf8_lossy(&output.stderr).into_owned(), termination_message] {
        assert!(printed.contains("WORLD_SIZE is 2") && printed.contains("has 3 stages"), "{printed}");
    }
}
