//! Tests with real processes and real signals. After the loss of any process, the group recovers, and its result is
//! bit-identical to the result of a run without faults.

use std::path::Path;
use std::time::Instant;

use stagecoach_tests::phases::stop;
use stagecoach_tests::{
    Ended, Group, Launched, Outcome, TestJob, corpus, ends_undisturbed, is_gone, recorded_state, saved, says, signal,
    until,
};

/// Returns a job that saves nothing before its end, so that every restart begins at step 0.
fn job() -> TestJob {
    let extra =
        "  checkpoint: {everySteps: 0}\n  restart: {backoff: {initialSeconds: 0}, terminationTimeoutSeconds: 2}\n"
            .into();
    TestJob { name: "faulty".into(), decay_steps: Some(60), extra, ..TestJob::default() }
}

/// Waits until all of `pids` have ended, and prints the time since the fault. The time is at most 5 s on a machine that
/// is not overloaded.
fn gone_soon(pids: &[u32], since: Instant) {
    until("the whole group's end", || pids.iter().all(|&pid| is_gone(pid)).then_some(()));
    println!("the group was gone {:?} after the fault", since.elapsed());
}

/// Starts the job without an end, and waits for `step`. The job still runs at the time of the fault, even on a fast
/// machine. Returns the process ids of the stages too.
fn running(workspace: &Path, step: u64) -> (Launched, Vec<u32>) {
    running_job(workspace, &job(), step)
}

fn running_job(workspace: &Path, job: &TestJob, step: u64) -> (Launched, Vec<u32>) {
    let mut launched = Launched::start(workspace, &job.endless(), &[]);
    launched.wait_for_step(step);
    let stages = launched.wait_for_stages(3);
    (launched, stages)
}

/// Asserts that the group trains again by itself after a fault, and that its result is bit-identical to the result of a
/// run without faults. Returns the outcome of the launcher.
fn recovers(workspace: &Path, mut launched: Launched) -> Outcome {
    launched.wait_for_restart(workspace);
    let outcome = launched.interrupt(workspace);
    says(&ends_undisturbed(workspace, &job()), "resuming after step");
    outcome
}

/// Asserts that the stages in `ranks` have new processes and all other stages have the same processes as before.
fn only_replaced(launched: &Launched, before: &[u32], ranks: &[usize]) {
    let now = launched.wait_for_stages(before.len());
    for rank in 0..before.len() {
        assert_eq!(now[rank] != before[rank], ranks.contains(&rank), "stage {rank}: {before:?} became {now:?}");
    }
}

#[test]
fn a_killed_stage_is_replaced_and_the_others_stay() {
    for rank in 0..3 {
        let workspace = corpus::workspace();
        let (mut launched, stages) = running(workspace.path(), 5);
        signal(stages[rank], libc::SIGKILL);
        launched.wait_for_restart(workspace.path());
        only_replaced(&launched, &stages, &[rank]);
        let outcome = launched.interrupt(workspace.path());
        says(&outcome, &format!("starting stage {rank} again in 0.0s; the others wait for it"));
        says(&outcome, "training starts at step 0");
        says(&ends_undisturbed(workspace.path(), &job()), "resuming after step");
        assert_eq!(
            recorded_state(&workspace.path().join("faulty"))["attempt"]["number"],
            2,
            "expected the same attempt after the kill, and attempt 2 after Ctrl-C"
        );
    }
}

#[test]
fn a_stage_may_be_lost_again_and_again_while_training_progresses() {
    let workspace = corpus::workspace();
    let extra = job().extra.replace("everySteps: 0", "everySteps: 2");
    let (mut launched, stages) = running_job(workspace.path(), &TestJob { extra, ..job() }, 5);
    for _ in 0..5 {
        let stage = launched.stages()[1];
        signal(stage, libc::SIGKILL);
        until("the process to exit", || is_gone(stage).then_some(()));
        let step = launched.steps();
        // wait until the job has trained new steps: if a stage is lost twice without progress, the whole group ends
        launched.wait_for_step(step + 8);
    }
    only_replaced(&launched, &stages, &[1]);
    assert_eq!(recorded_state(&workspace.path().join("faulty"))["budget"]["replaced"], 5);
    launched.interrupt(workspace.path());
    ends_undisturbed(workspace.path(), &job());
}

#[test]
fn two_killed_at_once_are_replaced_and_the_third_stays() {
    let workspace = corpus::workspace();
    let (mut launched, stages) = running(workspace.path(), 5);
    signal(stages[0], libc::SIGKILL);
    signal(stages[2], libc::SIGKILL);
    // the launcher may observe one death before the other, and replace the stages together or one after the other
    until("both replacements", || {
        let now = launched.stages();
        (now.len() == 3 && now[0] != stages[0] && now[2] != stages[2]).then_some(())
    });
    launched.wait_for_restart(workspace.path());
    only_replaced(&launched, &stages, &[0, 2]);
    launched.interrupt(workspace.path());
    ends_undisturbed(workspace.path(), &job());
}

#[test]
fn without_time_to_regroup_a_killed_stage_takes_the_group_with_it() {
    for rank in 0..3 {
        let workspace = corpus::workspace();
        let extra = job().extra.replace("restart: {", "restart: {reformTimeoutSeconds: 0, ");
        let (launched, stages) = running_job(workspace.path(), &TestJob { extra, ..job() }, 5);
        let struck = Instant::now();
        signal(stages[rank], libc::SIGKILL);
        gone_soon(&stages, struck);
        let outcome = recovers(workspace.path(), launched);
        says(&outcome, &format!("stage {rank}"));
        says(&outcome, "restarting in 0.0s: attempt 2");
        says(&outcome, "step 0");
    }
}

#[test]
fn a_stopped_stage_is_noticed_by_its_silence_killed_and_replaced() {
    for rank in 0..2 {
        let workspace = corpus::workspace();
        let extra = job().extra.replace("restart: {", "restart: {heartbeatTimeoutSeconds: 2, ");
        let (mut launched, stages) = running_job(workspace.path(), &TestJob { extra, ..job() }, 5);
        signal(stages[rank], libc::SIGSTOP);
        let struck = Instant::now();
        gone_soon(&stages[rank..=rank], struck);
        launched.wait_for_restart(workspace.path());
        only_replaced(&launched, &stages, &[rank]);
        let outcome = launched.interrupt(workspace.path());
        says(&outcome, &format!("stage {rank} has sent no heartbeat for 2.0 s"));
        ends_undisturbed(workspace.path(), &job());
    }
}

#[test]
fn a_terminated_stage_takes_the_group_out_at_a_boundary() {
    let workspace = corpus::workspace();
    let (launched, stages) = running(workspace.path(), 5);
    signal(stages[2], libc::SIGTERM);
    until("the whole group's end", || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
    recovers(workspace.path(), launched);
}

#[test]
fn stages_die_with_their_launcher() {
    let workspace = corpus::workspace();
    let (mut launched, stages) = running(workspace.path(), 5);
    launched.child.kill().unwrap();
    launched.child.wait().unwrap();
    gone_soon(&stages, Instant::now());
}

#[test]
fn ctrl_c_leaves_with_143_and_the_next_run_resumes() {
    let workspace = corpus::workspace();
    let (launched, stages) = running(workspace.path(), 5);
    launched.interrupt(workspace.path());
    assert!(stages.iter().all(|&pid| is_gone(pid)));
    says(&ends_undisturbed(workspace.path(), &job()), "resuming after step");
}

/// Ctrl-C while the launcher replaces a lost stage, or at the moment of the loss, leaves no process. The next run
/// resumes.
#[test]
fn ctrl_c_while_the_group_forms_again_leaves_with_143() {
    for rank in 0..3 {
        for replaced in [false, true] {
            let workspace = corpus::workspace();
            let extra = job().extra.replace("everySteps: 0", "everySteps: 2");
            let (launched, stages) = running_job(workspace.path(), &TestJob { extra, ..job() }, 5);
            signal(stages[rank], libc::SIGKILL);
            if replaced {
                until("the replacement", || {
                    let now = launched.stages();
                    (now.len() == 3 && now[rank] != stages[rank]).then_some(())
                });
            }
            let left = launched.stages();
            launched.interrupt(workspace.path());
            assert!(left.iter().all(|&pid| is_gone(pid)), "stage {rank}, replaced: {replaced}");
            ends_undisturbed(workspace.path(), &job());
        }
    }
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let workspace = corpus::workspace();
    // with this timeout, the launcher would wait two minutes for a stopped stage
    let patient = job().extra.replace("terminationTimeoutSeconds: 2", "terminationTimeoutSeconds: 120");
    let (mut launched, stages) = running_job(workspace.path(), &TestJob { extra: patient, ..job() }, 5);
    // the other stages can't exit gracefully without this stage
    stop(stages[1]);
    signal(launched.child.id(), libc::SIGINT);
    let stdout = workspace.path().join("stdout");
    until("the launcher's answer", || std::fs::read_to_string(&stdout).unwrap().contains("stopping").then_some(()));
    assert!(launched.child.try_wait().unwrap().is_none());
    signal(launched.child.id(), libc::SIGINT);
    let outcome = launched.finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(137), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "killing the stages");
    until("the stages' end", || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
    ends_undisturbed(workspace.path(), &job());
}

#[test]
fn a_terminated_stage_of_a_group_ends_all_in_one_checkpoint() {
    let workspace = corpus::workspace();
    for (attempt, stage) in (1..).zip([1, 0, 2]) {
        let mut group = Group::start(workspace.path(), &job().endless(), "a", attempt);
        let metrics = workspace.path().join("faulty/metrics.jsonl");
        let step = || std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count() as u64);
        // the steps of the earlier attempts are already in the metrics
        let before = step();
        until("some steps", || (group.is_whole() && step() > before + 8).then_some(()));
        signal(group.pids()[stage], libc::SIGTERM);
        let ended = group.finish();
        let newest =
            std::fs::read_dir(workspace.path().join("faulty/checkpoints")).unwrap().flatten().map(|e| e.path());
        let manifest = std::fs::read(newest.max().unwrap().join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["attempt"], attempt);
        assert_eq!(manifest["step"], step());
        for Ended { code, termination_message, log } in ended {
            assert_eq!(code, Some(143), "{log}");
            assert_eq!(
                (&termination_message["kind"], &termination_message["step"]),
                (&"Drained".into(), &manifest["step"]),
                "{termination_message}"
            );
        }
    }
    ends_undisturbed(workspace.path(), &job());
}

#[test]
fn one_run_holds_a_job_and_a_finished_one_says_so() {
    let workspace = corpus::workspace();
    let (launched, _) = running(workspace.path(), 2);
    let second = {
        let elsewhere = tempfile::tempdir().unwrap();
        let file = elsewhere.path().join("job.yaml");
        std::fs::write(&file, job().endless().yaml()).unwrap();
        std::process::Command::new(stagecoach_tests::stagecoach())
            .args(["run", file.to_str().unwrap(), "--workspace", workspace.path().to_str().unwrap()])
            .output()
            .unwrap()
    };
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(stderr.contains(&launched.child.id().to_string()), "{stderr}");
    launched.interrupt(workspace.path());
    let first = ends_undisturbed(workspace.path(), &job());
    let done = TestJob { steps: saved(&workspace.path().join("faulty")), ..job().endless() };
    let again = Launched::start(workspace.path(), &done, &[]).finish(workspace.path());
    assert_eq!(again.hashes(), first.hashes());
    says(&again, "already");
}

#[test]
fn a_model_that_is_not_finite_ends_the_job_and_saves_nothing() {
    let workspace = corpus::workspace();
    let yaml = job().yaml().replace("initializerRange: 0.1", "initializerRange: 1e39");
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, yaml).unwrap();
    let folder = workspace.path().join("faulty");
    let outcome = Launched::start_file(workspace.path(), &file, folder.clone(), &[]).finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(1), "{}\n{}", outcome.stdout, outcome.stderr);
    // both attempts skip ten steps in a row and end at the same step, so a third attempt would not help
    says(&outcome, "step 10 is the last of 10 in a row");
    says(&outcome, "attempt 2");
    assert!(!outcome.stdout.contains("attempt 3"));
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().all(|line| line.contains("\"skipped\":true")), "{metrics}");
    assert!(std::fs::read_dir(folder.join("checkpoints")).unwrap().next().is_none() && outcome.result.is_none());
}
