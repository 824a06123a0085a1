//! Held-out evaluation: the stages evaluate the held-out data in windows of several microbatches. The division into
//! windows does not change a bit of the loss, and no stage holds more than one window, however large the held-out data
//! is.

use std::path::Path;

use stagecoach_tests::{Launched, Outcome, TestJob, corpus, peak_bytes};

/// Runs `job` with replacements in its YAML.
fn run(workspace: &Path, job: &TestJob, changes: &[(&str, &str)]) -> Outcome {
    let file = workspace.join("changed.yaml");
    let change = |yaml: String, (from, to): &(&str, &str)| {
        assert!(yaml.contains(from), "no {from:?} in\n{yaml}");
        yaml.replace(from, to)
    };
    std::fs::write(&file, changes.iter().fold(job.yaml(), change)).unwrap();
    let outcome = Launched::start_file(workspace, &file, workspace.join(&job.name), &["--fresh"]).finish(workspace);
    assert!(outcome.status.success(), "{}\n{}", outcome.stdout, outcome.stderr);
    outcome
}

fn evaluation_loss(outcome: &Outcome) -> f64 {
    outcome.result.as_ref().unwrap()["evaluationLoss"].as_f64().unwrap()
}

const EVALUATION: &str = "{fraction: 0.1, everySteps: 10}";

#[test]
fn a_limit_on_held_out_sequences_takes_the_same_ones_under_every_layout() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let loss = |stages, schedule, virtual_stages, evaluation| {
        let job = TestJob { stages, schedule, virtual_stages, steps: 5, ..TestJob::default() };
        evaluation_loss(&run(workspace, &job, &[(EVALUATION, evaluation)]))
    };
    // a microbatch has three sequences; the layouts have windows of 4, 8 and 12 microbatches, and the last window of
    // each is shorter
    let limited = "{fraction: 0.1, everySteps: 10, maxSequences: 50}";
    let losses = [(1, "1F1B", 1), (2, "ZBVZeroBubble", 2), (3, "Interleaved1F1B", 2)]
        .map(|(stages, schedule, chunks)| loss(stages, schedule, chunks, limited));
    assert_eq!(losses, [losses[0]; 3]);
    assert_ne!(losses[0], loss(1, "1F1B", 1, EVALUATION));
    let more_than_there_are = "{fraction: 0.1, everySteps: 10, maxSequences: 1000000}";
    assert_eq!(loss(2, "1F1B", 1, more_than_there_are), loss(1, "1F1B", 1, EVALUATION));
}

#[test]
fn no_stage_holds_more_than_a_window_of_what_is_held_out() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    std::fs::create_dir_all(workspace.join("corpus")).unwrap();
    std::fs::write(workspace.join("corpus/small.jsonl"), corpus::jsonl(4_000, 40, 7)).unwrap();
    let (hidden, rows, length) = (256, 48, 64);
    let (width, batch) = (format!("hiddenSize: {hidden}"), format!("globalBatchSize: {}", 4 * rows));
    let peaks = |job: &TestJob, max_sequences: &str| {
        let evaluation = format!("{{fraction: 0.5, everySteps: 1{max_sequences}}}");
        let changes = [("hiddenSize: 32", &*width), ("globalBatchSize: 12", &*batch), ("th: 24", "th: 64")];
        let changes: Vec<_> = changes.into_iter().chain([(EVALUATION, &*evaluation)]).collect();
        run(workspace, job, &changes);
        peak_bytes(&workspace.join(&job.name))
    };
    let one_microbatch = format!(", maxSequences: {rows}");
    // Each stage has two chunks, and keeps the inputs of the second chunk while the first one computes. Training itself
    // needs little memory, so the inputs of more than one window would increase the peak.
    let (schedule, recompute) = ("Interleaved1F1B", "Full");
    let job = TestJob { stages: 1, schedule, virtual_stages: 2, recompute, steps: 1, ..TestJob::default() };
    peaks(&job, &one_microbatch); // this run fills the token cache: tokenising has a peak of its own
    for stages in [1, 2] {
        let job = TestJob { stages, ..job.clone() };
        let (few, many) = (peaks(&job, &one_microbatch), peaks(&job, ""));
        let boundary = (rows * length * hidden * 4) as i64;
        // the 16 allows for variation: the number of tensors in transfer, and memory that the allocator can't use
        // because it lies between other tensors
        let bound = (4 * stages as i64 + 16) * boundary;
        println!(
            "{stages} stages: {few:?} bytes with one microbatch held out, {many:?} with many windows; bound {bound}"
        );
        assert!(few.iter().zip(&many).all(|(few, many)| (*many as i64) - (*few as i64) < bound));
    }
}
