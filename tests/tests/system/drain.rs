//! SIGTERM: the group leaves at the next step's boundary, or gives the step up if the grace period is too short for it. Either
//! way there is a checkpoint, and nothing of it is left in the numbers.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stagecoach_tests::{Group, Launched, Outcome, TestJob, corpus, saved, says, signal, undisturbed, until};

/// A job whose steps take so long that a signal falls into one, with `grace` seconds to leave.
fn slow(grace: u32, every_steps: u32) -> TestJob {
    let extra = format!(
        "  checkpoint: {{everySteps: {every_steps}}}\n  template: {{spec: {{terminationGracePeriodSeconds: {grace}}}}}\n"
    );
    TestJob { name: "kept".into(), steps: 6, global_batch_size: 4800, microbatches: 24, extra, ..TestJob::default() }
}

fn metrics(workspace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace.join("kept/metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What was trained is saved, and the rest of the job gives what it gives undisturbed.
fn goes_on(workspace: &Path, job: &TestJob) -> Outcome {
    assert_eq!(saved(&workspace.join("kept")), metrics(workspace).len() as u64, "what is trained is saved");
    let outcome = Launched::start(workspace, job, &[]).finish(workspace);
    assert_eq!(outcome.hashes(), undisturbed(job));
    outcome
}

#[test]
fn a_step_that_does_not_fit_into_the_grace_period_is_given_up() {
    let mut given_up = 0;
    for (schedule, virtual_stages, transport, third) in
        [("1F1B", 1, "Tcp", 0), ("InterleavedZeroBubble", 2, "Shm", 1), ("ZBVZeroBubble", 2, "Auto", 2)]
    {
        let workspace = corpus::workspace();
        let path = workspace.path();
        let job = TestJob { schedule, virtual_stages, transport, ..slow(1, third) };
        let mut launched = Launched::start(path, &job, &[]);
        launched.wait_for_step(2);
        let step = metrics(path)[0]["seconds"].as_f64().unwrap();
        // where in the step the signal falls
        std::thread::sleep(Duration::from_secs_f64(step * f64::from(third) / 3.0));
        let outcome = launched.interrupt(path);
        assert!(saved(&path.join("kept")) >= 2, "{}", outcome.stdout);
        given_up += outcome.stdout.matches("is given up: the grace period is too short").count();
        goes_on(path, &job);
    }
    assert!(given_up > 0, "no step was given up: steps are too short for this test");
}

#[test]
fn one_stage_that_is_asked_to_stop_takes_all_with_it_at_this_boundary() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    for (attempt, grace) in [(1, 120), (2, 1)] {
        let job = slow(grace, 0);
        let before = metrics(path).len();
        let mut group = Group::start(path, &job, "kept", attempt);
        until("two steps", 60, || (metrics(path).len() >= before + 2).then_some(()));
        let (trained, pids) = (metrics(path).len(), group.pids());
        signal(pids[1], libc::SIGTERM);
        for stage in group.finish(60) {
            assert_eq!(stage.code, Some(143), "{stage:?}");
        }
        // the step in which it was asked, at most: with little grace not even that
        assert!(metrics(path).len() <= trained + 1);
        assert_eq!(saved(&path.join("kept")), metrics(path).len() as u64);
    }
    goes_on(path, &slow(120, 0));
}

#[test]
fn an_evaluation_is_left_to_whoever_goes_on() {
    let job = TestJob { steps: 20, global_batch_size: 1200, ..slow(120, 0) };
    for _ in 0..5 {
        let workspace = corpus::workspace();
        let path = workspace.path();
        let mut launched = Launched::start(path, &job, &[]);
        launched.wait_for_step(9);
        launched.interrupt(path);
        if metrics(path).len() != 10 {
            continue; // the signal came too late for step 10
        }
        assert!(metrics(path)[9]["evaluationLoss"].is_null(), "{}", metrics(path)[9]);
        let outcome = goes_on(path, &job);
        says(&outcome, "going on after step 10");
        assert!(metrics(path)[9]["evaluationLoss"].is_number(), "{}", metrics(path)[9]);
        return;
    }
    panic!("the signal never fell into step 10: steps are too short for this test");
}
