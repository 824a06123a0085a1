//! Jobs that train on a mixture of files on a Hugging Face hub (a test server) and on the volume. Faults of the hub, of
//! stages and of the launcher do not change the results.

use std::path::Path;
use std::process::Command;

use stagecoach_test_hub::{File, Hub, PlannedAnswer};
use stagecoach_tests::fixture::records;
use stagecoach_tests::{
    Hashes, Launched, Outcome, TestJob, corpus, no_file_has, run_command, says, signal, stagecoach,
};

const REPO: &str = "datasets/org/plays";

/// Returns a hub with texts in several files.
fn hub() -> Hub {
    let hub = Hub::start();
    let texts: Vec<String> = (0..4).map(|file| corpus::jsonl(150, 40, 20 + file)).collect();
    let names = ["data/0.jsonl", "data/1.jsonl", "data/2.jsonl", "data/3.jsonl"];
    hub.put(REPO, "main", names.into_iter().zip(texts).map(|(name, text)| (name, File::large(text))));
    hub
}

/// Returns a job with two sources. The first source is on the hub, and its sampling weight changes at step 20.
fn job() -> TestJob {
    let sources = "sources: [{name: plays, paths: [\"hf://datasets/org/plays/data/*\"], weight: 3, weightSchedule: \
                   [{fromStep: 20, weight: 1}]}, {name: small, paths: [corpus/small.jsonl]}]";
    TestJob {
        name: "mixed".into(),
        // without streaming, the job reads the whole corpus before it trains, and so before the test makes the hub fail
        corpus: format!("{sources}\n    streaming: {{mode: Never}}"),
        steps: 40,
        extra: "  checkpoint: {everySteps: 5, keepLast: 100}\n  restart: {backoff: {initialSeconds: 0}}\n".into(),
        ..TestJob::default()
    }
}

fn start(hub: &Hub, workspace: &Path, job: &TestJob) -> Launched {
    let endpoint = hub.endpoint();
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", "/nowhere"), ("HF_TOKEN", "hf_planted")];
    hub.user("hf_planted");
    Launched::start_with(workspace, job, &[], &variables)
}

fn undisturbed() -> Hashes {
    let (hub, workspace) = (hub(), corpus::workspace());
    let outcome = start(&hub, workspace.path(), &TestJob { stages: 1, ..job() }).finish(workspace.path());
    outcome.hashes()
}

#[test]
fn the_results_do_not_depend_on_the_hub_nor_on_what_dies() {
    let expected = undisturbed();
    let (hub, workspace) = (hub(), corpus::workspace());
    let workspace = workspace.path();
    hub.faults(|faults| {
        faults.requests_per_signature = 3;
        faults.truncate_at = Some(1000);
        faults.truncations = 3;
        faults.answers =
            vec![PlannedAnswer::hub(429).with("ratelimit", "\"resolvers\";r=0;t=0"), PlannedAnswer::cdn(503)];
    });
    let mut launched = start(&hub, workspace, &job());
    launched.wait_for_step(7);
    // the branch changes, and the hub fails for the rest of this run
    hub.put(REPO, "main", [("data/0.jsonl", File::large(corpus::jsonl(100, 40, 99)))]);
    hub.faults(|faults| faults.answers = (0..1000).map(|_| PlannedAnswer::hub(503)).collect());
    let stages = launched.wait_for_stages(3);
    signal(stages[0], libc::SIGKILL);
    launched.wait_for_restart(workspace);
    launched.wait_for_step(12);
    launched.interrupt(workspace);
    // the job resumes with an empty token cache and another number of stages, and the hub works again
    std::fs::remove_dir_all(workspace.join("cache")).unwrap();
    hub.faults(|faults| faults.answers.clear());
    let outcome = start(&hub, workspace, &TestJob { stages: 2, ..job() }).finish(workspace);
    assert_eq!(outcome.hashes(), expected);
    no_file_has(workspace, "planted");

    let job = workspace.join("mixed");
    let endpoint = hub.endpoint();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(stagecoach());
        command.args(arguments).arg("--workspace").arg(workspace);
        let (code, printed) = run_command(command.env("HF_ENDPOINT", &endpoint).env("HF_HUB_CACHE", "/nowhere"));
        assert_eq!(code, Some(0), "{arguments:?}: {printed}");
        printed
    };
    let folder = job.display().to_string();
    // the replay uses the commit of the job, although the branch has changed
    command(&["replay", &folder, "--step", "30"]);
    let blamed = command(&["blame", &folder, "--step", "6"]);
    assert!(blamed.contains("hf://datasets/org/plays/data/"), "{blamed}");
}

#[test]
fn a_source_that_stops_ends_the_job() {
    let workspace = corpus::workspace();
    std::fs::write(workspace.path().join("corpus/few.jsonl"), corpus::jsonl(12, 40, 3)).unwrap();
    let sources = "sources: [{name: few, paths: [corpus/few.jsonl], onExhausted: Stop}, {name: small, paths: \
                   [corpus/small.jsonl], weight: 9}]";
    let job = TestJob { name: "stops".into(), corpus: sources.into(), steps: 1000, ..TestJob::default() };
    let outcome: Outcome = Launched::start(workspace.path(), &job, &[]).finish(workspace.path());
    says(&outcome, "the source few is exhausted after step");
    let result = outcome.result.unwrap();
    let step = result["steps"].as_u64().unwrap();
    assert!((1..1000).contains(&step), "{result}");
}

/// The loss of a step with one source is the loss of that source. The loss of a step with two sources is between the
/// losses of the sources.
#[test]
fn each_source_has_its_own_loss() {
    let workspace = corpus::workspace();
    std::fs::write(workspace.path().join("corpus/other.jsonl"), corpus::jsonl(200, 40, 3)).unwrap();
    let weights = |first: u32, second: u32| {
        format!("weight: {first}, weightSchedule: [{{fromStep: 4, weight: {second}}}, {{fromStep: 7, weight: 1}}]")
    };
    let sources = format!(
        "sources: [{{name: other, paths: [corpus/other.jsonl], {}}}, {{name: small, paths: [corpus/small.jsonl], {}}}]",
        weights(1, 0),
        weights(0, 1)
    );
    let job = TestJob { name: "losses".into(), corpus: sources, steps: 9, ..TestJob::default() };
    let outcome: Outcome = Launched::start(workspace.path(), &job, &[]).finish(workspace.path());
    assert!(outcome.status.success(), "{}", outcome.stderr);
    let records = records(&workspace.path().join("losses"));
    for (step, record) in (1..).zip(&records) {
        let loss = record["loss"].as_f64().unwrap();
        let losses = record["sourceLosses"].as_object().unwrap();
        let loss_of_source = |name: &str| losses.get(name).and_then(serde_json::Value::as_f64);
        match (step, loss_of_source("other"), loss_of_source("small")) {
            (1..=3, Some(alone), None) | (4..=6, None, Some(alone)) => assert!((alone - loss).abs() < 1e-6, "{record}"),
            (7.., Some(other), Some(small)) => {
                assert!(other.min(small) < loss && loss < other.max(small) && other != small, "{record}");
            }
            _ => panic!("{record}"),
        }
    }
    assert_eq!(records.len(), 9);
}
