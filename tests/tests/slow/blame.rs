//! `stagecoach blame`: the command names the documents that caused a step's loss and gradient, and computes the same
//! steps without these documents.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use stagecoach_tests::fixture::{contents, records};
use stagecoach_tests::{Launched, TestJob, corpus, run, stagecoach, text};

use crate::conversations;
use crate::replay::{change_metrics, job};

/// The words of a regular document. The document repeats them in this order, and starts with any of them.
const CYCLE: [&str; 12] = ["ka", "lo", "mi", "ren", "su", "tal", "vo", "wen", "xi", "yor", "zu", "be"];

/// The data of a job that streams its corpus.
const STREAMED: &str = "paths: [corpus/small.jsonl]\n    streaming: {mode: Always, windowSequences: 24}";

/// Returns a corpus of regular documents, except in the lines `poisoned` (counted from 1): the documents there consist
/// of random words of [`CYCLE`].
fn poisoned_corpus(documents: u64, words: u64, poisoned: &BTreeSet<u64>) -> String {
    let mut draws = corpus::Draws(5);
    let mut text = String::new();
    for line in 1..=documents {
        let first = draws.below(12);
        let word = |index: u64, draws: &mut corpus::Draws| match poisoned.contains(&line) {
            true => CYCLE[draws.below(12) as usize],
            false => CYCLE[((first + index) % 12) as usize],
        };
        let words: Vec<&str> = (0..words).map(|index| word(index, &mut draws)).collect();
        writeln!(text, "{{\"text\": \"{}.\"}}", words.join(" ")).unwrap();
    }
    text
}

/// Trains `job` in a new workspace with a [`poisoned_corpus`]. Returns the workspace and the job's folder.
fn trained(documents: u64, poisoned: &BTreeSet<u64>, job: &TestJob) -> (tempfile::TempDir, PathBuf) {
    let workspace = corpus::workspace();
    std::fs::write(workspace.path().join("corpus/small.jsonl"), poisoned_corpus(documents, 20, poisoned)).unwrap();
    let folder = train(workspace.path(), job);
    (workspace, folder)
}

fn train(workspace: &Path, job: &TestJob) -> PathBuf {
    Launched::start(workspace, job, &[]).finish(workspace).hashes();
    workspace.join(&job.name)
}

/// Returns the output of `blame --json` for a job's folder.
fn blame(folder: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(stagecoach()).args(["blame", text(folder), "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

fn names(step: &Value) -> Vec<&str> {
    step["documents"].as_array().unwrap().iter().map(|document| document["document"].as_str().unwrap()).collect()
}

fn line(folder: &Path, step: u64) -> Value {
    records(folder).swap_remove(step as usize - 1)
}

fn close(one: f64, other: f64, tolerance: f64) -> bool {
    (one - other).abs() <= tolerance * other.abs()
}

/// Asserts that the step's loss and gradient norm are those of the record, and that the shares of the step's documents
/// add up to the loss and the norm.
fn adds_up(step: &Value, line: &Value, precision: &str) {
    assert_eq!((&step["loss"], &step["gradientNorm"]), (&line["loss"], &line["gradientNorm"]), "{step}");
    let sum = |field: &str| -> f64 {
        step["documents"].as_array().unwrap().iter().map(|document| document[field].as_f64().unwrap()).sum()
    };
    // with bf16, layers round to 8 bits; without AVX512, matrix products with another number of rows may round
    // differently
    let tolerance = if precision == "BFloat16" { 1e-2 } else { 1e-5 };
    let loss = line["loss"].as_f64().unwrap();
    assert!(close(step["sumOfLosses"].as_f64().unwrap(), loss, tolerance), "{step}");
    assert!(close(step["sumOfNormShares"].as_f64().unwrap(), 1.0, tolerance), "{step}");
    assert!(close(sum("lossShare"), 1.0, 1e-9) && close(sum("normShare"), 1.0, tolerance), "{step}");
    assert_eq!(sum("targets") as u64, line["tokens"].as_u64().unwrap());
}

#[test]
fn shares_add_up_to_the_recorded_step_over_any_stages() {
    let workspace = corpus::workspace();
    let named = |name: &str| TestJob { name: name.into(), ..job(20) };
    let jobs = [
        job(20),
        TestJob { tied: true, schedule: "InterleavedZeroBubble", ..named("tied") },
        TestJob { packing: false, precision: "BFloat16", recompute: "Selective", ..named("padded") },
        TestJob { corpus: STREAMED.into(), ..named("streamed") },
    ];
    for job in jobs {
        let folder = train(workspace.path(), &job);
        let before = contents(&folder);
        // the replays start from the initial weights, and from a checkpoint; the last step is among them
        for (step, stages) in [(1, "2"), (13, "1"), (20, "3")] {
            let number = step.to_string();
            let report = blame(&folder, &["--step", &number, "--stages", stages, "--top", "1000"]);
            adds_up(&report["steps"][0], &line(&folder, step), job.precision);
        }
        assert!(contents(&folder) == before, "the run's folder is as it was");
        assert!(!workspace.path().join(".replay").exists());
    }
    // without --json, the output is a table of several steps, with the text of each document
    let (code, printed) = run(&["blame", text(&workspace.path().join("small")), "--step", "12", "--until", "13"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("equal: 3 steps, bit for bit") && printed.contains("\nstep 12: loss "), "{printed}");
    assert_eq!(printed.lines().filter(|line| line.starts_with("corpus/small.jsonl:")).count(), 20, "{printed}");
}

#[test]
fn twenty_poisoned_documents_are_all_found_by_name() {
    let poisoned: BTreeSet<u64> = (0..20).map(|index| 3 + 7 * index).collect();
    // each step contains all documents of the training corpus
    let shape = TestJob { stages: 2, layers: 2, global_batch_size: 162, microbatches: 3, packing: false, ..job(60) };
    let job = TestJob { evaluation: "{paths: [corpus/held-out.jsonl], everySteps: 10}".into(), ..shape };
    let workspace = corpus::workspace();
    let write = |name: &str, text: String| std::fs::write(workspace.path().join("corpus").join(name), text).unwrap();
    write("small.jsonl", poisoned_corpus(162, 20, &poisoned));
    write("held-out.jsonl", poisoned_corpus(18, 20, &BTreeSet::new()));
    let folder = train(workspace.path(), &job);
    let expected: BTreeSet<String> = poisoned.iter().map(|line| format!("corpus/small.jsonl:{line}")).collect();
    for by in ["excess", "loss"] {
        let report = blame(&folder, &["--step", "58", "--top", "20", "--by", by]);
        let found: BTreeSet<String> = names(&report["steps"][0]).into_iter().map(str::to_owned).collect();
        assert_eq!(found, expected, "by {by}");
        let parts = &report["steps"][0]["documents"][0]["parts"][0];
        assert_eq!((&parts["offset"], &parts["firstToken"]), (&0.into(), &0.into()));
        assert!(CYCLE.contains(&parts["text"].as_str().unwrap().split(' ').next().unwrap()), "{parts}");
    }
}

#[test]
fn spikes_are_found_and_name_what_made_them() {
    let poisoned = BTreeSet::from([20, 40, 60, 80, 100]);
    let job = TestJob { stages: 1, layers: 2, global_batch_size: 4, packing: false, ..job(120) };
    let (_workspace, folder) = trained(140, &poisoned, &job);
    let report = blame(&folder, &["--spikes=3", "--top", "1"]);
    let spikes = report["spikes"].as_array().unwrap();
    assert!(spikes.len() >= 3, "{report}");
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    for step in steps {
        let line: u64 = names(step)[0].rsplit(':').next().unwrap().parse().unwrap();
        assert!(poisoned.contains(&line), "{step}");
        assert!(spikes.iter().any(|spike| spike["step"] == step["step"]), "{report}");
    }
    // `--deviations` changes the rule for spikes; the command reports that no step is a spike by this rule
    let (code, printed) = run(&["blame", text(&folder), "--spikes", "--deviations", "1e9"]);
    assert_eq!(
        (code, printed.starts_with("no spike: no step's loss or gradient norm is more than")),
        (Some(0), true),
        "{printed}"
    );
}

#[test]
fn without_documents_only_their_loss_is_missing() {
    only_the_loss_is_missing(job(30));
}

#[test]
fn without_documents_of_a_stream_only_their_loss_is_missing() {
    only_the_loss_is_missing(TestJob { corpus: STREAMED.into(), ..job(30) });
}

fn only_the_loss_is_missing(job: TestJob) {
    let workspace = corpus::workspace();
    std::fs::write(workspace.path().join("corpus/held-out.jsonl"), corpus::jsonl(40, 40, 9)).unwrap();
    let evaluation = "{paths: [corpus/held-out.jsonl], everySteps: 10}".into();
    let folder = train(workspace.path(), &TestJob { evaluation, ..job });
    let before = contents(&folder);
    let report = blame(&folder, &["--step", "15", "--top", "1000"]);
    let step = &report["steps"][0];
    let document = &step["documents"][0];
    let name = document["document"].as_str().unwrap();
    let svg = workspace.path().join("without.svg");
    let without =
        |arguments: &[&str]| blame(&folder, &[&["--step", "15", "--until", "20", "--without"], arguments].concat());
    let report = without(&[name, "--svg", text(&svg)]);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), Vec::from_iter(11..=20));
    let present: Vec<u64> =
        report["documents"][0]["steps"].as_array().unwrap().iter().map(|step| step.as_u64().unwrap()).collect();
    assert!(present.contains(&15));
    for step in steps {
        let number = step["step"].as_u64().unwrap();
        let recorded = line(&folder, number);
        assert_eq!((&step["loss"], &step["gradientNorm"]), (&recorded["loss"], &recorded["gradientNorm"]));
        let is_same = step["lossWithout"] == step["loss"] && step["gradientNormWithout"] == step["gradientNorm"];
        assert_eq!(is_same, number < present[0], "{step}");
        assert_eq!(step["targets"] == step["targetsWithout"], !present.contains(&number), "{step}");
    }
    // in the first step that contains the document, the loss without it is the mean over the targets of the others
    let first = present[0];
    let report = blame(&folder, &["--step", &first.to_string(), "--top", "1000"]);
    let others = report["steps"][0]["documents"].as_array().unwrap().iter().filter(|other| other["document"] != *name);
    let (sum, targets) = others.fold((0.0, 0.0), |(sum, targets), other| {
        let own = other["targets"].as_f64().unwrap();
        (sum + own * other["loss"].as_f64().unwrap(), targets + own)
    });
    let first = steps.iter().find(|step| step["step"] == first).unwrap();
    assert_eq!(first["targetsWithout"].as_f64().unwrap(), targets);
    assert!(close(first["lossWithout"].as_f64().unwrap(), sum / targets, 1e-5), "{first}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains(&format!("without {name}")));

    // the results have the same bits for another number of stages
    assert_eq!(without(&[name, "--stages", "1"])["steps"].as_array().unwrap(), steps);
    // no step contains a held-out document, so the losses and norms without this document equal the record
    let (code, printed) =
        run(&["blame", text(&folder), "--step", "15", "--until", "20", "--without", "corpus/held-out.jsonl:40"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("corpus/held-out.jsonl:40 is in none of the steps 11 to 20"), "{printed}");
    assert!(printed.contains("equal: without the documents steps 11 to 20 are the same, bit for bit"), "{printed}");
    assert!(contents(&folder) == before, "the run's folder is as it was");
}

#[test]
fn what_can_not_be_blamed_is_reported_in_one_sentence() {
    let workspace = corpus::workspace();
    let folder = train(workspace.path(), &TestJob { stages: 1, ..job(20) });
    let of = text(&folder);
    for (arguments, code, words) in [
        (&["blame", of, "--step", "21"][..], 1, "step 21 is not trained yet: the record in"),
        (&["blame", of, "--step", "5", "--until", "4"], 1, "--until is 4, before --step 5"),
        (&["blame", text(workspace.path()), "--step", "5"], 1, "expected a job's folder, such as workspace/NAME"),
        (&["blame", of], 2, "--step <N>"),
        (&["blame", of, "--step", "0"], 2, "0 is not in 1.."),
        (&["blame", of, "--spikes", "--step", "3"], 2, "cannot be used with"),
        (&["blame", of, "--step", "5", "--without", "small.jsonl"], 2, "`small.jsonl` is not FILE:DOC"),
        (
            &["blame", of, "--step", "5", "--without", "small.jsonl:1"],
            1,
            "small.jsonl:1 is no document of the corpus: data.paths matches corpus/small.jsonl",
        ),
        (
            &["blame", of, "--step", "5", "--without", "corpus/small.jsonl:401"],
            1,
            "the file has corpus/small.jsonl:1 to corpus/small.jsonl:400",
        ),
    ] {
        let (found, printed) = run(arguments);
        assert!(printed.contains(words), "{arguments:?}: {printed}");
        assert_eq!(found, Some(code), "{printed}");
    }
    change_metrics(&folder, |lines| lines[13]["loss"] = 0.125.into());
    let (code, printed) = run(&["blame", of, "--step", "14"]);
    assert_eq!(code, Some(74), "{printed}");
    assert!(printed.contains("stagecoach: step 14 has the loss 0.125 in the record and "), "{printed}");
    std::fs::remove_file(folder.join("metrics.jsonl")).unwrap();
    let (code, printed) = run(&["blame", of, "--spikes"]);
    assert_eq!((code, printed.contains("has no metrics.jsonl, and --spikes needs it")), (Some(1), true), "{printed}");

    // the command refuses to leave out the only document of a step
    std::fs::write(workspace.path().join("corpus/small.jsonl"), poisoned_corpus(1, 900, &BTreeSet::new())).unwrap();
    let alone = train(workspace.path(), &TestJob { name: "alone".into(), stages: 1, ..job(3) });
    let (code, printed) = run(&["blame", text(&alone), "--step", "2", "--without", "corpus/small.jsonl:1"]);
    assert_eq!(
        (code, printed.contains("step 1 contains only the documents of --without")),
        (Some(1), true),
        "{printed}"
    );
    assert!(blame(&alone, &["--step", "2"])["steps"][0]["documents"][0]["excess"].is_null());
}

#[test]
fn streamed_conversations_are_found_by_name() {
    let workspace = conversations::workspace();
    let path = workspace.path();
    let extra = "  checkpoint: {everySteps: 10, keepLast: 9, mode: Sync}\n".into();
    let job = TestJob { steps: 20, extra, ..conversations::job("Always") };
    conversations::finished(conversations::start(path, &job), path);
    let folder = path.join(&job.name);
    let before = contents(&folder);
    for step in [1u64, 13, 20] {
        let report = blame(&folder, &["--step", &step.to_string(), "--top", "1000"]);
        adds_up(&report["steps"][0], &line(&folder, step), job.precision);
        for name in names(&report["steps"][0]) {
            assert!(name.starts_with("corpus/chat.jsonl:"), "{name}");
        }
    }
    let report = blame(&folder, &["--step", "13", "--top", "1"]);
    let name = names(&report["steps"][0])[0].to_owned();
    let without = blame(&folder, &["--step", "13", "--without", &name]);
    let step = without["steps"].as_array().unwrap().iter().find(|step| step["step"] == 13).unwrap();
    assert!(step["targetsWithout"].as_u64().unwrap() < step["targets"].as_u64().unwrap(), "{step}");
    // without all of its documents, a step has no loss
    let report = blame(&folder, &["--step", "13", "--top", "1000"]);
    let all = names(&report["steps"][0]).into_iter().flat_map(|name| ["--without", name]);
    let (code, printed) = run(&[&["blame", text(&folder), "--step", "13"][..], &all.collect::<Vec<_>>()].concat());
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("step 13 contains only the documents of --without, so nothing is left to train"),
        "{printed}"
    );
    assert!(contents(&folder) == before, "the run's folder is as it was");
}
