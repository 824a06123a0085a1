//! SIGTERM: the group stops at the end of the current step, or aborts the step if the grace period is too short. In
//! both cases the group saves a checkpoint, and the results are those of an undisturbed run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stagecoach_tests::block_io::{self, IoBlock};
use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE};
use stagecoach_tests::phases::Phase;
use stagecoach_tests::{
    Group, Launched, Outcome, TestJob, corpus, each, entrypoint, only_child, saved, says, signal, text, undisturbed,
    until,
};

/// Returns a job whose steps are so long that a signal arrives within a step. The grace period is `grace` seconds.
fn slow(grace: u32, every_steps: u32) -> TestJob {
    let extra = format!(
        "  checkpoint: {{everySteps: {every_steps}}}\n  template: {{spec: {{terminationGracePeriodSeconds: \
         {grace}}}}}\n"
    );
    TestJob { name: "kept".into(), steps: 6, global_batch_size: 4800, microbatches: 24, extra, ..TestJob::default() }
}

fn metrics(workspace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace.join("kept/metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Asserts that the trained steps are saved, and that the job resumes and has the results of an undisturbed run.
fn goes_on(workspace: &Path, job: &TestJob) -> Outcome {
    assert_eq!(
        saved(&workspace.join("kept")),
        metrics(workspace).len() as u64,
        "the newest checkpoint is not of the last step in the metrics"
    );
    let outcome = Launched::start(workspace, job, &[]).finish(workspace);
    assert_eq!(outcome.hashes(), undisturbed(job));
    outcome
}

#[test]
fn a_step_that_does_not_fit_into_the_grace_period_is_given_up() {
    let mut given_up = 0;
    let rows = [("1F1B", 1, "Tcp", 0), ("InterleavedZeroBubble", 2, "Shm", 1), ("ZBVZeroBubble", 2, "Auto", 2)];
    // one after another: another job at the same time could cost a stage the second of grace that it needs for its save
    for (schedule, virtual_stages, transport, third) in rows {
        let workspace = corpus::workspace();
        let path = workspace.path();
        let job = TestJob { schedule, virtual_stages, transport, ..slow(1, third) };
        let mut launched = Launched::start(path, &job, &[]);
        launched.wait_for_step(2);
        let step = metrics(path)[0]["seconds"].as_f64().unwrap();
        // this wait varies the point within the step at which the signal arrives
        std::thread::sleep(Duration::from_secs_f64(step * f64::from(third) / 3.0));
        let outcome = launched.interrupt(path);
        assert!(saved(&path.join("kept")) >= 2, "{}", outcome.stdout);
        let count = outcome.stdout.matches("is abandoned, because the grace period is too short").count();
        given_up += count;
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
        until("two steps", || (metrics(path).len() >= before + 2).then_some(()));
        let (trained, pids) = (metrics(path).len(), group.pids());
        signal(pids[1], libc::SIGTERM);
        for stage in group.finish() {
            assert_eq!(stage.code, Some(143), "{stage:?}");
        }
        // the last step is the one during which the signal arrived, or the step before it if the grace period is short
        assert!(metrics(path).len() <= trained + 1);
        assert_eq!(saved(&path.join("kept")), metrics(path).len() as u64);
    }
    goes_on(path, &slow(120, 0));
}

#[test]
fn an_evaluation_is_left_to_the_next_run() {
    let extra = "  checkpoint: {everySteps: 9, mode: Sync}\n".into();
    let job = TestJob { steps: 12, global_batch_size: 240, extra, ..slow(120, 0) };
    let workspace = corpus::workspace();
    let path = workspace.path();
    let records = path.join("records");
    fs::create_dir(&records).unwrap();
    // stage 0 blocks in the save of step 9, so that the signal falls into step 10, which an evaluation follows
    let block = IoBlock::new(0, Phase::LastSave).unwrap().to_string();
    let environment = [(FAULT_VARIABLE, block.as_str()), (RECORDS_VARIABLE, text(&records))];
    block_io::arm(&records);
    let mut group = Group::start_program(Path::new(env!("CARGO_BIN_EXE_faulty")), &environment, path, &job, "kept", 1);
    block_io::held(&records, || group.is_whole());
    let pid = group.pids()[0];
    signal(pid, libc::SIGTERM);
    let process = PathBuf::from(format!("/proc/{pid}"));
    until("the signal to arrive", || (!has_signal(&process, "ShdPnd:")).then_some(()));
    block_io::release(&records);
    for stage in group.finish() {
        assert_eq!(stage.code, Some(143), "{stage:?}");
    }
    assert_eq!(metrics(path).len(), 10);
    assert!(metrics(path)[9]["evaluationLoss"].is_null(), "{}", metrics(path)[9]);
    let outcome = goes_on(path, &job);
    says(&outcome, "resuming after step 10");
    assert!(metrics(path)[9]["evaluationLoss"].is_number(), "{}", metrics(path)[9]);
}

/// The options of `unshare` that make a program the first process of a PID namespace, as in a container.
const FIRST_PROCESS: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];

/// Writes a program that runs the image's entry point. If this machine can create a PID namespace, the entry point is
/// the first process of such a namespace. Returns the program's path, and whether the machine can create a namespace.
fn contained(workspace: &Path) -> (PathBuf, bool) {
    let mut unshare = Command::new("unshare");
    let can =
        unshare.args(FIRST_PROCESS).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let prefix = if can { format!("unshare {}", FIRST_PROCESS.join(" ")) } else { String::new() };
    let program = workspace.join("contained");
    fs::write(&program, format!("#!/bin/sh\nexec {prefix} '{}' \"$@\"\n", entrypoint().display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (program, can)
}

/// Returns whether the process with this folder in `/proc` has reached a given moment of its start.
type HasCome = fn(&Path) -> bool;

/// The moments in the start of a stage: their names, and whether a process has reached them.
const MOMENTS: [(&str, HasCome); 5] = [
    // the shell and `unshare` run before the entry point, and may block signals too
    ("the entry point", |process| runs_ours(process) && has_signal(process, "SigBlk:")),
    ("the program", |process| runs(process, "stagecoach")),
    ("libtorch", |process| contains(process, "maps", "libtorch_cpu")),
    ("the pinned instruction set", |process| contains(process, "environ", "ATEN_CPU_CAPABILITY")),
    ("the handler", |process| has_signal(process, "SigCgt:")),
];

fn runs_ours(process: &Path) -> bool {
    runs(process, "stagecoach-entrypoint") || runs(process, "stagecoach")
}

fn runs(process: &Path, program: &str) -> bool {
    fs::read_link(process.join("exe")).is_ok_and(|exe| exe.ends_with(program))
}

/// Whether the signal set `set` of a process contains SIGTERM.
fn has_signal(process: &Path, set: &str) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let signals = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(set)?.trim(), 16).ok());
    signals.is_some_and(|signals| signals & (1 << (libc::SIGTERM - 1)) != 0)
}

fn contains(process: &Path, file: &str, words: &str) -> bool {
    fs::read(process.join(file)).is_ok_and(|text| String::from_utf8_lossy(&text).contains(words))
}

/// Whether this machine supports `kernels: Portable`.
fn can_be_portable() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[test]
fn a_stage_that_is_asked_to_stop_while_it_starts_leaves_as_drained() {
    let kernels = if can_be_portable() { "Portable" } else { "Fastest" };
    let job = TestJob { stages: 1, decay_steps: Some(20), kernels, ..slow(120, 0) }.endless();
    let is_possible = |(moment, _): &&(&str, _)| can_be_portable() || *moment != "the pinned instruction set";
    each("series", &[1, 2], |_, _| {
        let workspace = corpus::workspace();
        let path = workspace.path();
        let (program, is_first) = contained(path);
        for (attempt, (moment, has_come)) in
            (1..).zip(MOMENTS.iter().filter(is_possible).cycle().take(2 * MOMENTS.len()))
        {
            let mut group = Group::start_program(&program, &[], path, &job, "starting", attempt);
            let shell = group.pids()[0];
            let pid = if is_first { until("the first process", || only_child(shell)) } else { shell };
            let process = PathBuf::from(format!("/proc/{pid}"));
            until(moment, || has_come(&process).then_some(()));
            signal(pid, libc::SIGTERM);
            let ended = group.finish().remove(0);
            assert_eq!(ended.code, Some(143), "{moment}: {ended:?}");
            assert_eq!(ended.termination_message["kind"], "Drained", "{moment}: {ended:?}");
        }
        assert_eq!(
            saved(&path.join("kept")),
            metrics(path).len() as u64,
            "the newest checkpoint is not of the last step in the metrics"
        );
    });
}
