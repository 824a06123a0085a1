//! The promise: kill any stage, change the number of stages half-way; the losses and the weights are bit for bit those
//! of the run that was never disturbed.

use std::path::{Path, PathBuf};

use stagecoach_tests::{Job, Launched, Outcome, corpus, is_gone, says, signal, until};

/// Saves every 4 steps; long enough to be disturbed.
fn job() -> Job {
    let extra = "  checkpoint: {everySteps: 4, keepLast: 3}\n  restart: {backoff: {initialSeconds: 0}, terminationTimeoutSeconds: 2}\n";
    Job { name: "kept".into(), steps: 60, extra: extra.into(), ..Job::default() }
}

fn run(workspace: &Path, job: &Job) -> Outcome {
    Launched::start(workspace, job, &[]).finish(workspace)
}

fn undisturbed(job: &Job) -> (String, String) {
    run(corpus::workspace().path(), job).hashes()
}

/// Runs to `step`, then stops by Ctrl-C, which leaves a checkpoint.
fn run_until(workspace: &Path, job: &Job, step: u64) {
    let mut launched = Launched::start(workspace, job, &[]);
    launched.wait_for_step(step);
    signal(launched.child.id(), libc::SIGINT);
    let outcome = launched.finish(workspace);
    assert_eq!(outcome.status.code(), Some(143), "{}\n{}", outcome.stdout, outcome.stderr);
}

/// Saves run behind training: the one of step 4 may be committed any number of steps later.
fn wait_for_a_checkpoint(workspace: &Path) {
    until("a checkpoint", 60, || (!checkpoints(workspace).is_empty()).then_some(()));
}

fn checkpoints(workspace: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(workspace.join("kept/checkpoints"));
    let mut steps: Vec<PathBuf> = folder.map(|f| f.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    steps.sort();
    steps
}

#[test]
fn killed_stages_go_on_from_the_last_checkpoint() {
    let expected = undisturbed(&job());
    for rank in 0..3 {
        let workspace = corpus::workspace();
        let mut launched = Launched::start(workspace.path(), &job(), &[]);
        launched.wait_for_step(10);
        wait_for_a_checkpoint(workspace.path());
        let stages = launched.stages();
        signal(stages[rank], libc::SIGKILL);
        until("the group's end", 30, || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
        let outcome = launched.finish(workspace.path());
        assert_eq!(outcome.hashes(), expected, "after the death of stage {rank}");
        says(&outcome, "training goes on after step");
        // a line a step, each once: what was trained twice is recorded once
        let metrics = std::fs::read_to_string(workspace.path().join("kept/metrics.jsonl")).unwrap();
        let steps: Vec<u64> = metrics
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, (1..=60).collect::<Vec<_>>());
        assert_eq!(checkpoints(workspace.path()).len(), 3, "keepLast is 3");
    }
}

#[test]
fn the_number_of_stages_may_change_half_way() {
    // tied and untied; 4 stages of a 3-layer model leave one with the head alone
    for tied in [false, true] {
        let job = Job { tied, layers: 3, ..job() };
        let workspace = corpus::workspace();
        for (stages, step) in [(3, 8), (2, 20), (4, 35)] {
            run_until(workspace.path(), &Job { stages, ..job.clone() }, step);
        }
        let last = run(workspace.path(), &Job { stages: 1, schedule: "GPipe", ..job.clone() });
        assert_eq!(last.hashes(), undisturbed(&job), "tied: {tied}");
    }
}

#[test]
fn a_launcher_that_is_killed_loses_nothing_that_was_saved() {
    let workspace = corpus::workspace();
    let mut launched = Launched::start(workspace.path(), &job(), &[]);
    launched.wait_for_step(10);
    wait_for_a_checkpoint(workspace.path());
    let stages = launched.stages();
    launched.child.kill().unwrap();
    launched.child.wait().unwrap();
    until("the stages' end", 30, || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
    let outcome = run(workspace.path(), &job());
    assert_eq!(outcome.hashes(), undisturbed(&job()));
    says(&outcome, "going on after step");
}

#[test]
fn a_checkpoint_of_another_job_is_refused_by_the_field_that_differs() {
    let workspace = corpus::workspace();
    run_until(workspace.path(), &job(), 6);
    let file = workspace.path().join("other.yaml");
    std::fs::write(&file, job().yaml().replace("peak: 1e-2", "peak: 2e-2")).unwrap();
    let folder = workspace.path().join("kept");
    let outcome = Launched::start_file(workspace.path(), &file, folder, &[]).finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "training.learningRate.peak is 0.02 here and 0.01 in the checkpoint");
}

#[test]
fn a_finished_job_trains_on_when_it_gets_more_steps() {
    // the decay is fixed, so that the longer run is the shorter one continued
    let decay = |steps| Job { steps, ..job() }.yaml().replace("warmupSteps: 5", "warmupSteps: 5, decaySteps: 60");
    let start = |workspace: &Path, steps| {
        let file = workspace.join("job.yaml");
        std::fs::write(&file, decay(steps)).unwrap();
        Launched::start_file(workspace, &file, workspace.join("kept"), &[]).finish(workspace).hashes()
    };
    let (short, whole) = (corpus::workspace(), corpus::workspace());
    start(short.path(), 30);
    assert_eq!(start(short.path(), 60), start(whole.path(), 60));
}

#[test]
fn the_learning_rate_is_a_function_of_the_step() {
    let workspace = corpus::workspace();
    run_until(workspace.path(), &job(), 7);
    run(workspace.path(), &job()).hashes();
    let metrics = std::fs::read_to_string(workspace.path().join("kept/metrics.jsonl")).unwrap();
    let rates: Vec<f64> = metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["learningRate"].as_f64().unwrap())
        .collect();
    for (step, rate) in rates.iter().enumerate() {
        let step = step as f64;
        // the job's: five steps of warm-up from a tenth, then half a cosine to the floor at step 60
        let expected = match step < 5.0 {
            true => 1e-2 * (0.1 + 0.9 * step / 5.0),
            false => 1e-3 + 9e-3 * 0.5 * (1.0 + (std::f64::consts::PI * (step - 5.0) / 55.0).cos()),
        };
        assert!((rate - expected).abs() < 1e-12, "step {step}: {rate} instead of {expected}");
    }
}
