//! The commands beside `run`, and the sample jobs.

use std::path::{Path, PathBuf};
use std::process::Command;

use stagecoach_tests::{Launched, TestJob, corpus, stagecoach};

fn succeeds(arguments: &[&str]) -> String {
    // with a thread a core, `generate` spins at every barrier while other tests compute
    let output = Command::new(stagecoach()).args(arguments).env("OMP_NUM_THREADS", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples")
}

#[test]
fn every_sample_can_be_planned() {
    let mut seen = 0;
    for sample in std::fs::read_dir(samples()).unwrap() {
        let said = succeeds(&["plan", text(&sample.unwrap().path())]);
        assert!(said.contains("balance") && said.contains("stage 0 |"), "{said}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn a_plan_gives_the_head_its_weight_and_can_be_taken_along() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sample = samples().join("llama-12-layers.yaml");
    let (svg, csv, trace) = (file("p.svg"), file("p.csv"), file("p.json"));
    let said = succeeds(&["plan", text(&sample), "--svg", text(&svg), "--csv", text(&csv), "--trace", text(&trace)]);
    // the table's rows: stage, layers, work, ...
    let rows = said.lines().filter_map(|l| l.trim_start().strip_suffix('%'));
    let rows = rows.map(|l| l.split_whitespace().collect::<Vec<_>>()).filter(|row| row[0].parse::<usize>().is_ok());
    let layers: Vec<&str> = rows.map(|row| row[1]).collect();
    assert_eq!(layers, ["5", "6", "1"], "{said}");
    assert!(said.contains("balance 0.905"));
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert!(serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(trace).unwrap()).is_ok());
    // the CSV is a schedule that a job can name
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("0F0,0F1,0F2,0F3"), "{csv}");
    std::fs::write(folder.path().join("own.csv"), csv.replace("0F0,0F1", "0F1,0F0")).unwrap();
    let own = ["--set", "pipeline.schedule={type: Csv, csv: {path: own.csv}}", "--workspace", text(folder.path())];
    succeeds(&[&["plan", text(&sample)], own.as_slice()].concat());
}

#[test]
fn a_corpus_is_tokenised_ahead_and_a_model_writes() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    corpus::write(workspace);
    let job = TestJob { steps: 3, ..TestJob::default() };
    let file = workspace.join("job.yaml");
    std::fs::write(&file, job.yaml()).unwrap();
    let said = succeeds(&["tokenize", text(&file), "--workspace", text(workspace)]);
    assert!(said.contains("400 documents"), "{said}");
    Launched::start(workspace, &job, &[]).finish(workspace).hashes();
    let model = workspace.join("small/checkpoints/step-00000003");
    let generate = |seed| succeeds(&["generate", text(&model), "--prompt", "ka", "--max-tokens", "20", "--seed", seed]);
    assert!(generate("1").starts_with("ka"));
    assert_eq!(generate("1"), generate("1"));
    assert_ne!(generate("1"), generate("2"));
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"] {
        assert!(model.join(name).exists(), "{name}");
    }
}
