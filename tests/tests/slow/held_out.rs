//! Jobs that end early, that keep their best checkpoint, and that have several held-out sets. The results are the same
//! after any fault.

use std::path::Path;

use serde_json::Value;
use stagecoach_tests::fixture::records;
use stagecoach_tests::{Launched, Outcome, TestJob, checkpoints, corpus, says, signal};

/// Returns a workspace whose training corpus is so small that the held-out loss soon rises.
fn workspace() -> tempfile::TempDir {
    let workspace = corpus::workspace();
    let corpus = workspace.path().join("corpus");
    std::fs::write(corpus.join("few.jsonl"), corpus::jsonl(60, 40, 3)).unwrap();
    std::fs::write(corpus.join("other.jsonl"), corpus::jsonl(20, 40, 4)).unwrap();
    std::fs::write(corpus.join("alike.jsonl"), corpus::jsonl(10, 40, 5)).unwrap();
    workspace
}

fn job(stages: usize, patience: u32) -> TestJob {
    TestJob {
        name: "early".into(),
        stages,
        steps: 400,
        decay_steps: Some(400),
        corpus: "paths: [corpus/few.jsonl]".into(),
        evaluation: format!(
            "{{paths: [corpus/other.jsonl], sets: [{{name: alike, paths: [corpus/alike.jsonl]}}], everySteps: 4, keepBest: true, \
             patience: {patience}}}"
        ),
        extra: "  checkpoint: {everySteps: 5, keepLast: 2}\n  restart: {backoff: {initialSeconds: 0}}\n".into(),
        ..TestJob::default()
    }
}

fn result(outcome: &Outcome) -> &Value {
    outcome.result.as_ref().unwrap()
}

/// Returns the step of the best evaluation, and the last step.
fn best_and_last(outcome: &Outcome) -> (u64, u64) {
    let result = result(outcome);
    (result["bestEvaluation"]["step"].as_u64().unwrap(), result["steps"].as_u64().unwrap())
}

fn run(workspace: &Path, job: &TestJob) -> Outcome {
    let outcome = Launched::start(workspace, job, &[]).finish(workspace);
    assert!(outcome.status.success(), "{}\n{}", outcome.stdout, outcome.stderr);
    outcome
}

/// Without a background save, only the step of an evaluation can be kept, not a later one.
#[test]
fn the_best_checkpoint_is_kept_however_checkpoints_are_saved() {
    for checkpoint in ["{mode: Sync, everySteps: 5, keepLast: 1}", "{everySteps: 0, keepLast: 1}"] {
        let workspace = workspace();
        let extra = format!("  checkpoint: {checkpoint}\n");
        let outcome = run(workspace.path(), &TestJob { extra, ..job(1, 2) });
        let (best, last) = best_and_last(&outcome);
        assert!(best % 5 != 0 && last > best, "{}", result(&outcome));
        assert_eq!(checkpoints(&workspace.path().join("early")), [best, last], "{checkpoint}");
    }
}

#[test]
fn patience_ends_a_job_at_the_same_step_whatever_dies() {
    let undisturbed = workspace();
    let expected = run(undisturbed.path(), &job(1, 3));
    let (best, last) = best_and_last(&expected);
    assert!(best > 4 && last == best + 3 * 4 && last < 400, "{}", result(&expected));
    let why = format!("the held-out loss has not improved in 3 evaluations since step {best}");
    assert!(result(&expected)["endedEarly"].as_str().unwrap().starts_with(&why), "{}", result(&expected));
    says(&expected, "ended early: the held-out loss has not improved in 3 evaluations");
    // the job keeps the best checkpoint and the newest two; it has fewer if it deferred a save that was due
    let keeps_best = |workspace: &Path| {
        let kept = checkpoints(&workspace.join("early"));
        assert!(kept.contains(&best) && kept.contains(&last) && kept.len() <= 3, "{kept:?}");
    };
    keeps_best(undisturbed.path());

    let disturbed = workspace();
    let workspace = disturbed.path();
    let mut launched = Launched::start(workspace, &job(3, 3), &[]);
    launched.wait_for_step(best.min(6));
    signal(launched.wait_for_stages(3)[1], libc::SIGKILL);
    launched.wait_for_restart(workspace);
    // interrupt the job between evaluations that do not improve
    launched.wait_for_step(best + 5);
    launched.interrupt(workspace);
    let mut launched = Launched::start(workspace, &job(2, 3), &[]);
    launched.wait_for_step(best + 9);
    signal(launched.wait_for_stages(2)[0], libc::SIGKILL);
    let outcome = launched.finish(workspace);
    assert_eq!(outcome.hashes(), expected.hashes());
    for field in ["bestEvaluation", "endedEarly", "evaluationSetLosses", "steps"] {
        assert_eq!(result(&outcome)[field], result(&expected)[field]);
    }
    keeps_best(workspace);

    // the finished job trains no further; with more patience it continues, and ends like a job that had this patience
    // from the start
    let again = Launched::start(workspace, &job(2, 3), &[]).finish(workspace);
    assert_eq!(again.hashes(), expected.hashes());
    let longer = run(workspace, &job(2, 6));
    let from_the_start = run(workspace, &TestJob { name: "patient".into(), ..job(1, 6) });
    assert!(best_and_last(&longer).1 > last);
    assert_eq!(longer.hashes(), from_the_start.hashes());
    assert_eq!(result(&longer)["bestEvaluation"], result(&from_the_start)["bestEvaluation"]);
}

#[test]
fn an_audited_job_ends_early_too() {
    let workspace = workspace();
    let plain = run(workspace.path(), &job(1, 2));
    let audited = TestJob { name: "audited".into(), ..job(2, 2) };
    let yaml = audited.yaml().replace("  training:\n", "  training:\n    audit: {everySteps: 1}\n");
    let file = workspace.path().join("audited.yaml");
    std::fs::write(&file, yaml).unwrap();
    let launched = Launched::start_file(workspace.path(), &file, workspace.path().join("audited"), &[]);
    let outcome = launched.finish(workspace.path());
    assert_eq!(outcome.hashes(), plain.hashes());
}

#[test]
fn sets_have_the_same_losses_under_every_layout() {
    let workspace = workspace();
    let evaluation = "{fraction: 0.1, sets: [{name: alike, paths: [corpus/alike.jsonl]}, {name: other, paths: [corpus/other.jsonl]}], \
                      everySteps: 5, maxSequences: 40}";
    let losses = [(1, "1F1B", 1), (2, "ZBVZeroBubble", 2), (3, "Interleaved1F1B", 2)].map(
        |(stages, schedule, virtual_stages)| {
            let name = format!("sets-{stages}");
            let evaluation = evaluation.into();
            let job = TestJob { name, stages, schedule, virtual_stages, evaluation, steps: 10, ..TestJob::default() };
            let outcome = run(workspace.path(), &job);
            let mut evaluated = records(&workspace.path().join(&job.name));
            evaluated.retain(|line| line["step"].as_u64().unwrap().is_multiple_of(5));
            let sets = evaluated.iter().map(|line| line["evaluationSetLosses"].as_object().unwrap());
            let sets: Vec<[f64; 2]> =
                sets.map(|sets| ["alike", "other"].map(|name| sets[name].as_f64().unwrap())).collect();
            assert_eq!(sets.len(), 2);
            (outcome.hashes().evaluation_losses, format!("{sets:?}"))
        },
    );
    assert_eq!(losses, [losses[0].clone(), losses[0].clone(), losses[0].clone()]);
}
