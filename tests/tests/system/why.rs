//! `stagecoach why` reports a run's last failure, also while the job runs, and writes no file.

use std::path::Path;
use std::process::Command;

use stagecoach_tests::{Launched, TestJob, corpus, run, signal, stagecoach, text, until};

/// Runs `why`. Returns the exit code and the output.
fn why(folder: &Path) -> (Option<i32>, String) {
    run(&["why", text(folder)])
}

fn says(folder: &Path, words: &[&str]) -> String {
    let (code, printed) = why(folder);
    assert_eq!(code, Some(0), "{printed}");
    words.iter().for_each(|words| assert!(printed.contains(words), "no {words:?} in\n{printed}"));
    printed
}

/// Waits until the output of `why` contains all `words`, and returns the output.
fn reported(folder: &Path, words: &[&str]) -> String {
    until(&format!("{words:?} from why"), || {
        let (_, printed) = why(folder);
        words.iter().all(|words| printed.contains(words)).then_some(printed)
    })
}

/// Returns the words of the only job's line in `stagecoach top`.
fn top(workspace: &Path) -> Vec<String> {
    let output = Command::new(stagecoach()).args(["top", "--workspace"]).arg(workspace).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(output.status.success() && lines.len() == 2 && lines[0].starts_with("NAME"), "{printed}");
    lines[1].split_whitespace().map(str::to_owned).collect()
}

fn job(extra: &str) -> TestJob {
    let extra = format!("  checkpoint: {{everySteps: 5}}\n{extra}");
    TestJob { name: "why".into(), stages: 2, decay_steps: Some(60), extra, ..TestJob::default() }.endless()
}

#[test]
fn a_killed_stage_is_reported_while_the_job_runs_and_afterwards() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("why");
    let mut launched = Launched::start(workspace.path(), &job(""), &[]);
    launched.wait_for_step(7);
    says(&folder, &["no stage of this job has failed. It runs (process "]);
    signal(launched.stages()[1], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());
    let reported = reported(&folder, &["Training resumed from the checkpoint of step "]);
    for words in [
        "stage 1 failed first, at ",
        "in attempt 1 after step ",
        "reason: Killed, exit code 137 (SIGKILL)",
        "the other stages waited, and stage 1 was started again; ",
        " of 10 restarts are left",
        "trained again.",
        "now:    It runs (process ",
        "to do:  find the sender of the signal",
    ] {
        assert!(reported.contains(words), "no {words:?} in\n{reported}");
    }
    let line = top(workspace.path());
    assert_eq!([&line[0], &line[1], &line[5], &line[6], &line[7]], ["why", "Running", "2/2", "-", "1"], "{line:?}");
    launched.interrupt(workspace.path());
    let line = top(workspace.path());
    assert_eq!([&line[0], &line[1], &line[4], &line[5]], ["why", "Stopped", "-", "0/2"], "{line:?}");
    let stopped =
        says(&folder, &["stage 1 failed first", "now:    It is stopped: ", "continues from the checkpoint of step"]);
    let state = std::fs::read(folder.join("state.json")).unwrap();
    assert_eq!(without_age(&why(&folder).1), without_age(&stopped), "asking changes nothing");
    assert_eq!(std::fs::read(folder.join("state.json")).unwrap(), state);
}

/// Returns the output without the time since the event.
fn without_age(printed: &str) -> String {
    let (before, after) = printed.split_once(" (").unwrap();
    before.to_owned() + after.split_once(" ago)").unwrap().1
}

#[test]
fn a_spare_that_took_over_is_named() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("why");
    let mut launched = Launched::start(workspace.path(), &job("  spares: 1\n"), &[]);
    launched.wait_for_step(7);
    let spare = launched.wait_for_spare(workspace.path(), &[]);
    signal(launched.stages()[0], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());
    reported(&folder, &["spare 0 took the place of stage 0"]);
    // the spare is now stage 0: when it is lost too, `why` names the spare's log
    signal(spare, libc::SIGKILL);
    reported(&folder, &["logs/spare-0.log"]);
}

#[test]
fn a_job_that_failed_for_good_says_why() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let folder = path.join("why");
    let mut launched = Launched::start(path, &job("  restart: {maxRestarts: 0}\n"), &[]);
    launched.wait_for_step(1);
    signal(launched.stages()[1], libc::SIGKILL);
    assert!(!launched.finish(path).status.success());
    says(
        &folder,
        &[
            "stage 1 failed first",
            "none was started again: restart.maxRestarts is used up; 0 of 0 restarts are left",
            "now:    It has failed for good, since restart.maxRestarts is used up",
        ],
    );

    // the job fails with exit code 78, since the tokenizer's file is missing
    let yaml = TestJob { name: "invalid".into(), ..TestJob::default() }
        .yaml()
        .replace("{type: Train, train: {vocabSize: 300}}", "{type: File, file: {path: nowhere.json}}");
    let file = path.join("invalid.yaml");
    std::fs::write(&file, yaml).unwrap();
    let outcome = Launched::start_file(path, &file, path.join("invalid"), &[]).finish(path);
    assert!(!outcome.status.success());
    let reported =
        says(&path.join("invalid"), &["stage 0 failed first", "nowhere.json", "It has failed for good, since "]);
    assert!(reported.contains("to do:  "), "{reported}");
}

#[test]
fn a_folder_that_is_no_jobs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for (name, words) in
        [("nowhere", "nowhere does not exist"), ("", "is no job's folder"), ("file", "is no job's folder")]
    {
        let (code, printed) = why(&folder.path().join(name));
        assert!(
            code != Some(0) && printed.contains(words) && printed.contains("such as workspace/NAME"),
            "{code:?}: {printed}"
        );
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}
