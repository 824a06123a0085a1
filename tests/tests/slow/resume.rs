//! The bits of the losses and weights do not change if any stage is killed, or if the number of stages changes during a
//! run.

use std::path::Path;

use stagecoach_tests::fixture::{copy, recorded_steps, records};
use stagecoach_tests::{
    Group, Launched, Outcome, TestJob, checkpoints, corpus, is_gone, says, signal, stagecoach, undisturbed, until,
};

/// The step at which the decay of the learning rate ends.
const DECAY: u64 = 60;

/// Returns a job that saves every 4 steps.
fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 4, keepLast: 3}\n  restart: {backoff: {initialSeconds: 0}, \
                 terminationTimeoutSeconds: 2}\n";
    TestJob { name: "kept".into(), steps: 60, decay_steps: Some(DECAY), extra: extra.into(), ..TestJob::default() }
}

fn run(workspace: &Path, job: &TestJob) -> Outcome {
    Launched::start(workspace, job, &[]).finish(workspace)
}

/// Trains at least `steps` more steps, and then interrupts the job as Ctrl-C does. The job saves a checkpoint before it
/// exits.
fn run_on(workspace: &Path, job: &TestJob, steps: u64) {
    let step = saved(workspace) + steps;
    let mut launched = Launched::start(workspace, &job.endless(), &[]);
    launched.wait_for_step(step);
    launched.interrupt(workspace);
    assert!(saved(workspace) >= step);
}

/// Waits for a checkpoint. The job saves during training, so it may commit the save of step 4 any number of steps
/// later.
fn wait_for_a_checkpoint(workspace: &Path) {
    until("a checkpoint", || (saved(workspace) > 0).then_some(()));
}

/// Returns the step of the newest checkpoint, or 0 without a checkpoint.
fn saved(workspace: &Path) -> u64 {
    stagecoach_tests::saved(&workspace.join("kept"))
}

#[test]
fn killed_stages_resume_from_the_last_checkpoint() {
    for (rank, precision, schedule, virtual_stages) in
        [(0, "Float32", "1F1B", 1), (1, "BFloat16", "ZBVZeroBubble", 2), (2, "Float32", "Interleaved1F1B", 2)]
    {
        let workspace = corpus::workspace();
        let job = || TestJob { precision, schedule, virtual_stages, ..job() };
        let mut launched = Launched::start(workspace.path(), &job().endless(), &[]);
        launched.wait_for_step(10);
        wait_for_a_checkpoint(workspace.path());
        let stages = launched.stages();
        signal(stages[rank], libc::SIGKILL);
        until("the killed stage to exit", || is_gone(stages[rank]).then_some(()));
        // the group that has lost the stage may still commit its save until the next group forms
        launched.wait_for_restart(workspace.path());
        let now = launched.wait_for_stages(3);
        let before = saved(workspace.path());
        until("a checkpoint of the next group", || (saved(workspace.path()) > before).then_some(()));
        assert!((0..3).all(|other| (now[other] == stages[other]) == (other != rank)), "{stages:?} became {now:?}");
        says(&launched.interrupt(workspace.path()), "training resumes from the checkpoint of step");
        let rest = job().ending_after(saved(workspace.path()));
        assert_eq!(run(workspace.path(), &rest).hashes(), undisturbed(&rest), "after the death of stage {rank}");
        // the metrics have one line for each step, also for a step that was trained twice
        let folder = workspace.path().join("kept");
        assert_eq!(recorded_steps(&folder), (1..=rest.steps).collect::<Vec<_>>());
        assert_eq!(checkpoints(&folder).len(), 3, "keepLast is 3");
    }
}

#[test]
fn the_number_of_stages_and_the_schedule_may_change_half_way() {
    // models with tied and untied weights; with 4 stages, a model of 3 layers has one stage with only the head
    for (tied, precision) in [(false, "Float32"), (true, "BFloat16")] {
        let job = TestJob { tied, precision, layers: 3, ..job() };
        let workspace = corpus::workspace();
        for (stages, schedule, virtual_stages) in
            [(3, "1F1B", 1), (2, "ZBVZeroBubble", 2), (4, "InterleavedZeroBubble", 1), (2, "Interleaved1F1B", 3)]
        {
            run_on(workspace.path(), &TestJob { stages, schedule, virtual_stages, ..job.clone() }, 10);
        }
        let rest = job.ending_after(saved(workspace.path()));
        let last = run(workspace.path(), &TestJob { stages: 1, schedule: "GPipe", ..rest.clone() });
        assert_eq!(last.hashes(), undisturbed(&rest), "tied: {tied}, {precision}");
    }
}

#[test]
fn a_launcher_that_is_killed_loses_nothing_that_was_saved() {
    let workspace = corpus::workspace();
    let mut launched = Launched::start(workspace.path(), &job().endless(), &[]);
    launched.wait_for_step(10);
    wait_for_a_checkpoint(workspace.path());
    launched.kill();
    let rest = job().ending_after(saved(workspace.path()));
    let outcome = run(workspace.path(), &rest);
    assert_eq!(outcome.hashes(), undisturbed(&rest));
    says(&outcome, "prep   loading  ");
    says(&outcome, "resuming after step");
}

#[test]
fn a_checkpoint_of_another_job_is_refused_by_the_field_that_differs() {
    let workspace = corpus::workspace();
    run_on(workspace.path(), &job(), 6);
    let file = workspace.path().join("other.yaml");
    std::fs::write(&file, job().endless().yaml().replace("peak: 1e-2", "peak: 2e-2")).unwrap();
    let folder = workspace.path().join("kept");
    let outcome = Launched::start_file(workspace.path(), &file, folder, &[]).finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "training.learningRate.peak is 0.02 here and 0.01 in the checkpoint");
}

/// Trains a job of `steps` steps to its end, with the learning rate `rate`.
fn train(workspace: &Path, steps: u64, rate: &str) -> Outcome {
    let file = workspace.join("job.yaml");
    let yaml = TestJob { steps, ..job() }.yaml();
    let (before, rest) = yaml.split_once("learningRate: {").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    std::fs::write(&file, format!("{before}learningRate: {{{rate}}}{after}")).unwrap();
    Launched::start_file(workspace, &file, workspace.join("kept"), &[]).finish(workspace)
}

/// Returns the learning rate of every step, from the metrics.
fn rates(workspace: &Path) -> Vec<f64> {
    records(&workspace.join("kept")).iter().map(|record| record["learningRate"].as_f64().unwrap()).collect()
}

#[test]
fn a_finished_job_trains_on_when_it_gets_more_steps() {
    // the end of the decay is explicit, so that the longer run continues the decay of the shorter one
    let rate = "peak: 1e-2, warmupSteps: 5, warmupStart: 0.1, decaySteps: 60, floor: 1e-3";
    let (short, whole) = (corpus::workspace(), corpus::workspace());
    train(short.path(), 20, rate).hashes();
    assert_eq!(train(short.path(), 40, rate).hashes(), train(whole.path(), 40, rate).hashes());
}

#[test]
fn an_extension_at_a_rate_of_zero_is_refused_and_changes_nothing() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let expected = train(path, 4, "peak: 1e-2").hashes();
    let job = std::fs::read(path.join("kept/resolved-job.yaml")).unwrap();
    let refused = train(path, 10, "peak: 1e-2");
    assert_eq!(refused.status.code(), Some(78), "{}\n{}", refused.stdout, refused.stderr);
    says(&refused, "the learning rate of steps 5 to 10 would be 0, since its decay ends at step 4");
    says(&refused, "spec.training.learningRate.decaySteps");
    assert_eq!(std::fs::read(path.join("kept/resolved-job.yaml")).unwrap(), job);
    assert!(path.join("kept/logs").exists());
    assert_eq!(train(path, 4, "peak: 1e-2").hashes(), expected, "the result is still there");
}

#[test]
fn an_extension_says_its_learning_rate_and_may_have_a_decay_of_its_own() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    train(path, 4, "peak: 1e-2, floor: 1e-3").hashes();
    let at_the_floor = train(path, 6, "peak: 1e-2, floor: 1e-3");
    says(&at_the_floor, "the learning rate of steps 5 to 6 is 1.0e-3, since its decay ends at step 4");
    says(&at_the_floor, "spec.training.learningRate.decaySteps");
    let falling = train(path, 12, "peak: 1e-2, floor: 1e-3, decaySteps: 12");
    says(&falling, "the learning rate of steps 7 to 12 goes from");
    // a cosine decay to the floor at step 4, the floor until step 6, and the second half of a cosine decay until step
    // 12
    let cosine = |step: f64, end: f64| 1e-3 + 9e-3 * 0.5 * (1.0 + (std::f64::consts::PI * step / end).cos());
    let expected = |step: usize| match step {
        0..4 => cosine(step as f64, 4.0),
        4..6 => 1e-3,
        _ => cosine(step as f64, 12.0),
    };
    let described = rates(path);
    assert_eq!(described.len(), 12);
    for (step, rate) in described.into_iter().enumerate() {
        assert!((rate - expected(step)).abs() < 1e-12, "step {step}: {rate} instead of {}", expected(step));
    }
    // another end of the decay gives another curve, which the job refuses here because it gets no more steps
    let other = train(path, 12, "peak: 1e-2, floor: 1e-3, decaySteps: 20");
    assert_eq!(other.status.code(), Some(78), "{}\n{}", other.stdout, other.stderr);
}

#[test]
fn an_extension_gives_the_same_bits_whenever_it_is_asked_for() {
    let longer = "peak: 1e-2, warmupSteps: 5, warmupStart: 0.1, floor: 1e-3, decaySteps: 80";
    let [at_the_end, half_way] = [corpus::workspace(), corpus::workspace()];
    run(at_the_end.path(), &job()).hashes();
    copy(&at_the_end.path().join("kept"), &half_way.path().join("kept"));
    let expected = train(at_the_end.path(), 80, longer).hashes();
    // in a job that resumes from an older checkpoint, the remaining steps of the original job keep the original decay
    std::fs::remove_file(half_way.path().join("kept/result.json")).unwrap();
    std::fs::remove_dir_all(half_way.path().join("kept/checkpoints/step-00000060")).unwrap();
    let extended = train(half_way.path(), 80, longer);
    says(&extended, "the learning rate of steps 61 to 80 goes from");
    assert_eq!(extended.hashes(), expected);
    assert_eq!(rates(half_way.path()), rates(at_the_end.path()));
}

#[test]
fn the_learning_rate_is_a_function_of_the_step() {
    let workspace = corpus::workspace();
    run_on(workspace.path(), &job(), 7);
    run(workspace.path(), &TestJob { steps: DECAY + 20, ..job() }).hashes();
    for (step, rate) in rates(workspace.path()).iter().enumerate() {
        let step = step as f64;
        // the rate of the job: five steps of warm-up from a tenth, and half a cosine to the floor at step 60
        let expected = match step < 5.0 {
            true => 1e-2 * (0.1 + 0.9 * step / 5.0),
            false => 1e-3 + 9e-3 * 0.5 * (1.0 + (std::f64::consts::PI * (step.min(DECAY as f64) - 5.0) / 55.0).cos()),
        };
        assert!((rate - expected).abs() < 1e-12, "step {step}: {rate} instead of {expected}");
    }
}

/// Returns the environment differences in the metrics, each with its step.
fn environment_differences(workspace: &Path) -> Vec<(u64, String)> {
    let described =
        records(&workspace.join("kept")).into_iter().filter(|line| !line["environmentDifferences"].is_null());
    described.map(|line| (line["step"].as_u64().unwrap(), line["environmentDifferences"].to_string())).collect()
}

#[test]
fn a_resume_in_another_environment_is_reported_and_remembered() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let run = |steps, set: &[&str]| Launched::start(path, &TestJob { steps, ..job() }, set).finish(path);
    run(4, &[]).hashes();
    assert_eq!(environment_differences(path), []);
    let resumed = run(8, &["--set", "training.threads=2"]);
    says(
        &resumed,
        "the checkpoint is of another environment (threads 2 instead of 1): from here on the numbers may differ",
    );
    let manifest = std::fs::read_to_string(path.join("kept/checkpoints/step-00000008/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for field in ["libtorch", "isa", "mkl", "oneDnn", "products", "processor", "device", "threads", "deterministic"] {
        assert!(!manifest["environment"][field].is_null(), "{field} is missing from {}", manifest["environment"]);
    }
    // with the same number of threads as before, the job reports no difference, and the metrics keep the earlier one
    let again = run(12, &["--set", "training.threads=2"]);
    assert!(!again.stdout.contains("another environment"), "{}", again.stdout);
    let described = "[\"threads 2 instead of 1\"]".to_owned();
    assert_eq!(environment_differences(path), [(5, described.clone()), (9, described)]);
}

#[test]
fn stages_in_different_environments_are_reported() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let trainer = path.join("trainer");
    let script = format!(
        "#!/bin/sh\n[ \"$RANK\" = 1 ] && export ATEN_CPU_CAPABILITY=default\nexec {} \"$@\"\n",
        stagecoach().display()
    );
    std::fs::write(&trainer, script).unwrap();
    std::fs::set_permissions(&trainer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let job = TestJob { steps: 2, stages: 2, ..job() };
    let ended = Group::start_program(&trainer, &[], path, &job, "mixed", 1).finish();
    assert!(ended.iter().all(|stage| stage.code == Some(0)), "{ended:?}");
    assert!(ended[0].log.contains("stage 1 has CPU DEFAULT"), "{}", ended[0].log);
    assert_eq!(environment_differences(path)[0].0, 1);
}

/// Returns the contents of the files by which a test detects a change to the job's run.
fn known_by(workspace: &Path) -> Vec<Option<Vec<u8>>> {
    let files = ["result.json", "resolved-job.yaml", "metrics.jsonl", "checkpoints/step-00000006/manifest.json"];
    files.map(|file| std::fs::read(workspace.join("kept").join(file)).ok()).into()
}

#[test]
fn a_refusal_by_the_stages_changes_nothing() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let run = |steps, set: &str| Launched::start(path, &TestJob { steps, ..job() }, &["--set", set]).finish(path);
    run(6, "stages=2").hashes();
    let before = known_by(path);
    assert!(before.iter().all(Option::is_some));
    // the launcher can't detect that the corpus has changed, so the stages refuse the run
    let text = std::fs::read_to_string(path.join("corpus/small.jsonl")).unwrap();
    std::fs::write(path.join("corpus/small.jsonl"), text.clone() + "{\"text\": \"one more\"}\n").unwrap();
    let refused = run(12, "stages=2");
    assert_eq!(refused.status.code(), Some(78), "{}\n{}", refused.stdout, refused.stderr);
    says(&refused, "data.corpus is ");
    assert_eq!(known_by(path), before);
    std::fs::write(path.join("corpus/small.jsonl"), text).unwrap();
    // the launcher itself refuses the changes that it can detect, for any number of steps
    for steps in [6, 12] {
        for set in ["data.evaluation.fraction=0.25", "checkpoint.initFrom.path=elsewhere"] {
            let refused = run(steps, set);
            assert_eq!(refused.status.code(), Some(78), "{}\n{}", refused.stdout, refused.stderr);
            assert_eq!(known_by(path), before, "{set}");
        }
    }
    says(&run(6, "stages=2"), "is trained already");
    says(&run(12, "stages=2"), "start  steps 7 to 12");
}

#[test]
fn fewer_steps_than_are_trained_are_said_to_be_so() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let run = |steps| Launched::start(path, &TestJob { steps, ..job() }, &[]).finish(path);
    run(6).hashes();
    let before = known_by(path);
    let shorter = run(4);
    assert_eq!(shorter.status.code(), Some(0), "{}\n{}", shorter.stdout, shorter.stderr);
    says(&shorter, "kept was trained for 6 steps, and spec.training.steps is less: nothing is left to train");
    assert_eq!(known_by(path), before);
    // without `result.json`, only the stages can detect that no steps remain
    std::fs::remove_file(path.join("kept/result.json")).unwrap();
    let shorter = run(4);
    says(&shorter, "step 6 is trained, and the job has 4 steps: nothing is left to train");
    assert!(!shorter.stdout.contains("start  steps"), "{}", shorter.stdout);
    says(&shorter, "done   6 steps");
}
