//! Spares: a waiting process replaces a lost stage at once, and the result is bit-identical to the result of a run
//! without faults.

use std::path::Path;

use stagecoach_tests::{
    Launched, Outcome, TestJob, corpus, ends_undisturbed, is_gone, recorded_state, says, signal, undisturbed, until,
};

/// Returns a job with one spare.
fn job() -> TestJob {
    let extra = "  spares: 1\n  checkpoint: {everySteps: 2, keepLast: 2}\n  restart: {backoff: {initialSeconds: 0}, \
                 terminationTimeoutSeconds: 2}\n"
        .into();
    TestJob { name: "spared".into(), decay_steps: Some(60), extra, ..TestJob::default() }
}

/// Starts the job without an end. Returns the launcher, the stages, and the waiting spare.
fn running(workspace: &Path) -> (Launched, Vec<u32>, u32) {
    let mut launched = Launched::start(workspace, &job().endless(), &[]);
    launched.wait_for_step(5);
    let stages = launched.wait_for_stages(3);
    let spare = launched.wait_for_spare(workspace, &[]);
    (launched, stages, spare)
}

/// Stops the run, and resumes it for a few more steps. Asserts that the bits are those of an undisturbed run. Returns
/// the outcome of the stopped run.
fn ends_with_the_same_bits(workspace: &Path, launched: Launched) -> Outcome {
    let outcome = launched.interrupt(workspace);
    ends_undisturbed(workspace, &job());
    outcome
}

#[test]
fn a_spare_takes_the_place_of_each_stage_and_the_next_one_is_made() {
    for rank in 0..3 {
        let workspace = corpus::workspace();
        let (mut launched, stages, spare) = running(workspace.path());
        let reached = launched.steps();
        signal(stages[rank], libc::SIGKILL);
        launched.wait_for_restart(workspace.path());
        // the job must pass its former last step: a stage that is lost twice without progress ends the whole group
        launched.wait_for_step(reached + 20);
        let next = launched.wait_for_spare(workspace.path(), &[spare]);
        // the other stages keep their processes, and the spare has become a stage
        let mut expected = stages.clone();
        expected[rank] = spare;
        let mut now = launched.wait_for_stages(3);
        assert_eq!(now[0], expected[0], "stage 0");
        expected.sort_unstable();
        now.sort_unstable();
        assert_eq!(now, expected);
        // the promoted spare can be lost too
        signal(spare, libc::SIGKILL);
        launched.wait_for_spare(workspace.path(), &[spare, next]);
        assert!(launched.stages().contains(&next));
        let record = recorded_state(&workspace.path().join("spared"));
        assert_eq!(record["attempt"]["number"], 1);
        assert_eq!(record["budget"]["replaced"], 2);
        let outcome = ends_with_the_same_bits(workspace.path(), launched);
        says(&outcome, &format!("a spare takes the place of stage {rank}; 9 of 10 restarts left"));
        assert!(!outcome.stdout.contains("starting stage"), "{}", outcome.stdout);
    }
}

#[test]
fn a_spare_that_dies_costs_nothing() {
    let workspace = corpus::workspace();
    let (mut launched, stages, spare) = running(workspace.path());
    signal(spare, libc::SIGKILL);
    // the launcher starts another spare
    let next = launched.wait_for_spare(workspace.path(), &[spare]);
    launched.wait_for_step(30);
    assert_eq!(launched.wait_for_stages(3), stages);
    assert_eq!(recorded_state(&workspace.path().join("spared"))["budget"]["total"], 0);
    // the new spare can replace a stage too
    signal(stages[1], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());
    assert!(launched.stages().contains(&next));
    ends_with_the_same_bits(workspace.path(), launched);
}

#[test]
fn a_stage_that_dies_with_the_spare_is_started_again() {
    for rank in 0..2 {
        let workspace = corpus::workspace();
        let (mut launched, stages, spare) = running(workspace.path());
        signal(spare, libc::SIGSTOP); // a stopped spare can't become a stage
        signal(stages[rank], libc::SIGKILL);
        launched.wait_for_restart(workspace.path());
        launched.wait_for_stages(3);
        signal(spare, libc::SIGKILL);
        let outcome = ends_with_the_same_bits(workspace.path(), launched);
        says(&outcome, &format!("starting stage {rank} again in 0.0s; the others wait for it"));
    }
}

/// The test stops the spare, and lets it continue only after another process has replaced the stage. The spare then
/// exits.
#[test]
fn a_spare_that_takes_a_place_too_late_goes() {
    let workspace = corpus::workspace();
    let (mut launched, stages, spare) = running(workspace.path());
    signal(spare, libc::SIGSTOP);
    signal(stages[1], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());
    signal(spare, libc::SIGCONT);
    until("the end of the spare that was late", || is_gone(spare).then_some(()));
    let step = recorded_state(&workspace.path().join("spared"))["bestStep"].as_u64().unwrap();
    launched.wait_for_step(step + 20);
    launched.wait_for_stages(3);
    ends_with_the_same_bits(workspace.path(), launched);
}

#[test]
fn spares_end_with_the_job() {
    let workspace = corpus::workspace();
    let job = TestJob { steps: 30, decay_steps: None, ..job() };
    let mut launched = Launched::start(workspace.path(), &job, &[]);
    launched.wait_for_step(1);
    let spares = until("the spare", || Some(launched.waiting_spares()).filter(|spares| !spares.is_empty()));
    let outcome = launched.finish(workspace.path());
    assert_eq!(outcome.hashes(), undisturbed(&job));
    assert!(spares.iter().all(|spare| is_gone(*spare)));
}
