//! `training.audit`: a stage recomputes a part of another stage's step. Stages on intact hardware always compute equal
//! bits, and the audit names a stage that computes wrong results.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use stagecoach_tests::faulty::{BIT_FLIP_VARIABLE, BitFlip};
use stagecoach_tests::fixture::records;
use stagecoach_tests::{Launched, Outcome, TestJob, corpus, saved, says, signal, undisturbed};

const EVERY_STEP: [&str; 2] = ["--set", "training.audit={everySteps: 1}"];
const RESTARTING: [&str; 2] = ["--set", "training.audit={everySteps: 1, onDifference: Restart}"];

/// Returns a job that saves nothing before its end. With the job's seed, the audit of the first step covers microbatch
/// 1 of chunk 1 (the layers of stage 1), both for two stages and for three.
fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 0}\n  restart: {backoff: {initialSeconds: 0}}\n".into();
    TestJob { name: "audited".into(), decay_steps: Some(60), extra, ..TestJob::default() }
}

/// Returns the path of the trainer whose stages can compute wrong results.
fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_faulty").into()
}

/// Starts `job`. If `flip` is given, the stage of its rank computes wrong results.
fn start(flip: Option<&BitFlip>, workspace: &Path, job: &TestJob, arguments: &[&str]) -> Launched {
    let file = workspace.join("audited.yaml");
    std::fs::write(&file, job.yaml()).unwrap();
    let flip = flip.map(ToString::to_string);
    let environment: Vec<(&str, &str)> = flip.iter().map(|flip| (BIT_FLIP_VARIABLE, flip.as_str())).collect();
    Launched::start_program(&program(), workspace, &file, workspace.join("audited"), arguments, &environment)
}

/// Trains `job` to its end with a stage that computes wrong results.
fn trained_with(flip: &BitFlip, workspace: &Path, job: &TestJob, arguments: &[&str]) -> Outcome {
    start(Some(flip), workspace, job, arguments).finish(workspace)
}

/// Returns the audits in the metrics of the job `audited`, in order.
pub(crate) fn audits(workspace: &Path) -> Vec<Value> {
    let audits = records(&workspace.join("audited")).into_iter().map(|mut record| record["audit"].take());
    audits.filter(|audit| !audit.is_null()).collect()
}

/// Returns the stages that an audit suspects. The result is empty if the audit found no difference.
fn suspects(audit: &Value) -> Vec<u64> {
    let suspects = audit["difference"]["suspects"].as_array().into_iter().flatten();
    suspects.map(|suspect| suspect["stage"].as_u64().unwrap()).collect()
}

fn why(workspace: &Path) -> String {
    let output = Command::new(program()).arg("why").arg(workspace.join("audited")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_computed_again_on_another_stage_is_equal_in_every_bit() {
    let replicas = TestJob { stages: 2, data_parallel: 2, gradient_blocks: 4, precision: "BFloat16", ..job() };
    let jobs = [
        job(),
        TestJob { stages: 2, tied: true, precision: "BFloat16", schedule: "ZBVZeroBubble", virtual_stages: 2, ..job() },
        TestJob { schedule: "InterleavedZeroBubble", gradient_blocks: 2, packing: false, transport: "Shm", ..job() },
        TestJob { stages: 4, tied: true, schedule: "GPipe", recompute: "Full", transport: "Tcp", ..job() },
        replicas.clone(),
        // one chunk has both the embedding and the head, which share a weight
        TestJob { stages: 1, tied: true, recompute: "Selective", ..replicas },
    ];
    for job in jobs {
        let workspace = corpus::workspace();
        let outcome = start(None, workspace.path(), &job, &EVERY_STEP).finish(workspace.path());
        assert_eq!(outcome.hashes(), undisturbed(&job), "{job:?}");
        let audits = audits(workspace.path());
        let steps: Vec<u64> = audits.iter().map(|audit| audit["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..job.steps).collect::<Vec<u64>>(), "{job:?}");
        for audit in &audits {
            assert!(audit["difference"].is_null() && audit["stage"] != audit["by"], "{job:?}: {audit}");
        }
    }
}

#[test]
fn a_stage_that_computed_one_result_wrong_once_is_named() {
    let job = TestJob { stages: 2, partition: Some(vec![2, 2]), ..job() };
    for (result, what) in [
        ("output", "differ in the output of chunk 1 and microbatch 1"),
        ("input-gradient", "differ in the gradient of the input of chunk 1 and microbatch 1"),
        ("weight-gradient", "differ in the gradients of the weights of chunk 1 and microbatch 1"),
    ] {
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        // the fault is in the result of a norm; stage 1 has five norms, so calls 5 to 9 belong to microbatch 1 of the
        // first step
        let flip = BitFlip { rank: 1, result: result.into(), calls: 5..10 };
        let outcome = trained_with(&flip, workspace, &job, &EVERY_STEP);
        assert_ne!(outcome.hashes(), undisturbed(&job), "{result}: the fault changes nothing");
        let audits = audits(workspace);
        assert_eq!(suspects(&audits[0]), [1], "{result}: {}", audits[0]);
        assert!(audits[1..].iter().all(|audit| suspects(audit).is_empty()), "{result}: {audits:?}");
        for words in [
            what,
            "audit  audit of step 1: stage 1 on ",
            "computed a wrong result: two stages agreed on another result when all computed the item again",
        ] {
            says(&outcome, words);
        }
        let why = why(workspace);
        assert!(why.contains("no stage of this job has failed. It is finished") && why.contains(what), "{why}");
    }
}

#[test]
fn a_stage_that_always_computes_wrong_is_named_by_the_other_two() {
    let workspace = corpus::workspace();
    let flip = BitFlip { rank: 1, result: "output".into(), calls: 0..u64::MAX };
    trained_with(&flip, workspace.path(), &job(), &EVERY_STEP).hashes();
    let audits = audits(workspace.path());
    assert_eq!(audits.len() as u64, job().steps - 1);
    for audit in audits {
        let takes_part = [&audit["stage"], &audit["by"]].into_iter().any(|stage| stage == 1);
        assert_eq!(suspects(&audit), if takes_part { vec![1] } else { Vec::new() }, "{audit}");
    }
}

#[test]
fn one_of_two_stages_that_always_computes_wrong_can_not_be_distinguished_from_the_other() {
    let workspace = corpus::workspace();
    let flip = BitFlip { rank: 0, result: "weight-gradient".into(), calls: 0..u64::MAX };
    let outcome = trained_with(&flip, workspace.path(), &TestJob { stages: 2, ..job() }, &EVERY_STEP);
    assert!(audits(workspace.path()).iter().all(|audit| suspects(audit) == [0, 1]));
    says(&outcome, "computed a wrong result: no two stages agreed when all computed the item again");
}

#[test]
fn the_attempt_ends_if_asked_and_the_next_one_ends_with_the_undisturbed_bits() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    // the fault occurs only in the first attempt, as if the next attempt ran on another node
    let flip = BitFlip { rank: 1, result: "output".into(), calls: 0..u64::MAX };
    let outcome = trained_with(&flip, workspace, &job(), &RESTARTING);
    assert_eq!(outcome.hashes(), undisturbed(&job()));
    let why = why(workspace);
    for words in [
        "stage 1 failed first",
        "reason: WrongResult, exit code 1: audit of step 1: stage 1 on ",
        "all stages were stopped, and started again as attempt 2",
        "to do:  test the memory and the processor",
    ] {
        assert!(why.contains(words), "no {words:?} in\n{why}");
    }
}

#[test]
fn the_next_attempt_resumes_from_before_the_wrong_result() {
    for mode in ["Sync", "Async"] {
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        // the job detects the difference one step later, after it has saved the wrong state
        let extra = job().extra.replace("everySteps: 0", &format!("everySteps: 1, mode: {mode}"));
        let job = TestJob { extra, ..job() };
        let flip = BitFlip { rank: 1, result: "output".into(), calls: 0..u64::MAX };
        let outcome = trained_with(&flip, workspace, &job, &RESTARTING);
        assert_eq!(outcome.hashes(), undisturbed(&job), "{mode}");
        says(
            &outcome,
            "was saved after step 1, for which an audit has found a wrong result: the checkpoint is now in damaged/",
        );
    }
}

#[test]
fn neither_a_spare_nor_a_copy_in_memory_keeps_what_may_be_wrong() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let flip = BitFlip { rank: 1, result: "output".into(), calls: 0..u64::MAX };
    let extra = job().extra.replace("everySteps: 0", "everySteps: 0, memory: {everySteps: 1}");
    let job = TestJob { extra: format!("  spares: 1\n{extra}"), ..job() };
    let outcome = trained_with(&flip, workspace, &job, &RESTARTING);
    assert_eq!(outcome.hashes(), undisturbed(&job));
    let why = why(workspace);
    for words in ["stage 1 failed first", "reason: WrongResult", "started again as attempt 2"] {
        assert!(why.contains(words), "no {words:?} in\n{why}");
    }
}

#[test]
fn a_lost_stage_loses_an_audit_and_no_bit() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let job = TestJob { extra: job().extra.replace("everySteps: 0", "everySteps: 4"), ..job() };
    let mut launched = start(None, workspace, &job.endless(), &EVERY_STEP);
    launched.wait_for_step(6);
    signal(launched.wait_for_stages(3)[2], libc::SIGKILL);
    launched.wait_for_restart(workspace);
    launched.interrupt(workspace);
    assert!(audits(workspace).iter().all(|audit| suspects(audit).is_empty()));
    let rest = job.ending_after(saved(&workspace.join("audited")));
    let outcome = start(None, workspace, &rest, &EVERY_STEP).finish(workspace);
    assert_eq!(outcome.hashes(), undisturbed(&rest));
}

#[test]
fn a_job_of_one_stage_says_that_nothing_is_audited() {
    let workspace = corpus::workspace();
    let job = TestJob { stages: 1, ..job() };
    let outcome = start(None, workspace.path(), &job, &EVERY_STEP).finish(workspace.path());
    assert_eq!(outcome.hashes(), undisturbed(&job));
    says(&outcome, "nothing is audited: training.audit needs a second stage");
}
