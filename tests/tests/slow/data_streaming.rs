//! Jobs that train while the leader reads their corpus. The result is the same after any fault of a stage, the volume,
//! the hub or the object store.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use stagecoach_test_hub::{Faults, File, Hub, PlannedAnswer};
use stagecoach_test_objects::{StoreFault, TestStore};
use stagecoach_tests::corpus::Draws;
use stagecoach_tests::fixture::records;
use stagecoach_tests::{
    Hashes, Launched, Outcome, TestJob, checkpoints, corpus, no_file_has, run_command, says, signal, stagecoach, text,
};

const REPO: &str = "datasets/org/plays";

/// The (stages, replicas) pairs with which the job continues after an interruption.
const MESHES: [(usize, usize); 5] = [(3, 1), (2, 1), (1, 1), (2, 2), (1, 4)];

/// The number of interruptions of the job that is interrupted.
const INTERRUPTIONS: u64 = 10;
/// The number of steps from one interruption to the next.
const INTERVAL: u64 = 12;

/// Returns files of several formats. The Parquet file has several blocks, and is too large to be read together with its
/// footer.
fn files(seed: u64) -> [(&'static str, Vec<u8>); 3] {
    let jsonl = |seed| corpus::jsonl(60, 40, seed).into_bytes();
    [("0.jsonl", jsonl(seed)), ("1.parquet", corpus::parquet(300, 40, seed + 1)), ("2.jsonl", jsonl(seed + 2))]
}

/// A hub and an object store with the files of a corpus.
struct Remote {
    hub: Hub,
    store: TestStore,
}

impl Remote {
    fn start() -> Remote {
        let remote = Remote { hub: Hub::start(), store: TestStore::start() };
        remote.hub.user("hf_planted");
        remote.hub.put(REPO, "main", files(20).map(|(name, bytes)| (name, File::large(bytes))));
        files(30).into_iter().for_each(|(name, bytes)| remote.store.put(&format!("plays/{name}"), bytes));
        remote
    }

    /// Returns the environment variables of a job that reads from the hub and the store.
    fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("HF_ENDPOINT", self.hub.endpoint()),
            ("HF_HUB_CACHE", "/nowhere".into()),
            ("HF_TOKEN", "hf_planted".into()),
            ("AWS_ENDPOINT_URL", self.store.endpoint()),
            ("AWS_ACCESS_KEY_ID", "AKIAplanted".into()),
            ("AWS_SECRET_ACCESS_KEY", "planted-key".into()),
        ]
    }
}

/// Returns a job that streams its corpus from a hub, an object store and the volume, with sampling weights that change.
fn job(streaming: &str) -> TestJob {
    let sources = "sources: [{name: plays, paths: [\"hf://datasets/org/plays/*\"], weight: 3}, {name: objects, paths: \
                   [\"s3://bucket/plays/*\"], weight: 2, weightSchedule: [{fromStep: 70, weight: 4}]}, {name: small, \
                   paths: [corpus/small.jsonl], weight: 1}]";
    TestJob {
        name: "streamed".into(),
        corpus: format!(
            "{sources}\n    streaming: {{windowSequences: 24, blockBytes: 4096{streaming}}}\n    cache: {{maxBytes: 1}}"
        ),
        // twice the step of the last interruption
        steps: 2 * INTERRUPTIONS * INTERVAL,
        decay_steps: Some(2 * INTERRUPTIONS * INTERVAL),
        gradient_blocks: 4,
        evaluation: "{fraction: 0.1, everySteps: 40}".into(),
        extra:
            "  checkpoint: {everySteps: 5, keepLast: 2}\n  restart: {maxRestarts: 100, backoff: {initialSeconds: 0}}\n"
                .into(),
        ..TestJob::default()
    }
}

fn start(remote: &Remote, workspace: &Path, job: &TestJob, arguments: &[&str]) -> Launched {
    let variables = remote.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    Launched::start_with(workspace, job, arguments, &variables)
}

fn finished(launched: Launched, workspace: &Path) -> Hashes {
    launched.finish(workspace).hashes()
}

/// Returns the hashes of the job's undisturbed run. Each remote has the same files.
fn undisturbed() -> &'static Hashes {
    static HASHES: OnceLock<Hashes> = OnceLock::new();
    HASHES.get_or_init(|| {
        let workspace = corpus::workspace();
        let job = TestJob { stages: 1, ..job("") };
        finished(start(&Remote::start(), workspace.path(), &job, &[]), workspace.path())
    })
}

/// Sets faults of the hub and of the store for the next requests.
fn disturb(remote: &Remote, draws: &mut Draws) {
    let limited = || PlannedAnswer::hub(429).with("ratelimit", "\"resolvers\";r=0;t=0");
    let answer = |kind| if kind == 0 { limited() } else { PlannedAnswer::hub(503) };
    remote.hub.faults(|faults| {
        *faults = Faults {
            truncate_at: Some(500 + draws.below(3000)),
            truncations: draws.below(3) as u32,
            answers: (0..draws.below(4)).map(|_| answer(draws.below(3))).collect(),
            requests_per_signature: [1, 2, u32::MAX][draws.below(3) as usize],
            ignores_ranges: draws.below(3) == 0,
            bytes_per_second: (draws.below(3) == 0).then_some(300_000),
            ..Faults::default()
        };
    });
    let faults = [StoreFault::error(503, "SlowDown"), StoreFault::Break(700)];
    remote.store.faults((0..draws.below(3)).map(|_| faults[draws.below(2) as usize].clone()));
}

#[test]
fn interruptions_of_every_kind_leave_one_result() {
    let remote = Remote::start();
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let folder = workspace.join("streamed");
    let mut draws = Draws(44);
    let mut job = job("");
    let mut launched = start(&remote, workspace, &job, &[]);
    for interruption in 1..=INTERRUPTIONS {
        launched.wait_for_step(INTERVAL * interruption);
        disturb(&remote, &mut draws);
        let stages = launched.wait_for_stages(job.stages * job.data_parallel);
        if draws.below(2) == 0 {
            signal(stages[draws.below(stages.len() as u64) as usize], libc::SIGKILL);
            launched.wait_for_restart(workspace);
            continue;
        }
        if draws.below(3) == 0 {
            launched.kill();
        } else {
            launched.interrupt(workspace);
        }
        // the job continues with another number of stages, and without some of its files on the volume
        let removed = ["cache", "streamed/windows", "nothing"][draws.below(3) as usize];
        std::fs::remove_dir_all(workspace.join(removed)).ok();
        (job.stages, job.data_parallel) = MESHES[draws.below(MESHES.len() as u64) as usize];
        launched = start(&remote, workspace, &job, &[]);
    }
    assert_eq!(finished(launched, workspace), *undisturbed());
    no_file_has(workspace, "planted");
    let waits = |record: &Value| record["dataWaitSeconds"].as_f64().is_some_and(|seconds| seconds >= 0.0);
    assert!(records(&folder).iter().all(waits));

    // a replay reads the blocks again, starting at the positions in the checkpoint
    let replay = ["replay", text(&folder), "--step", "237", "--workspace", text(workspace)];
    let (code, printed) = run_command(Command::new(stagecoach()).args(replay).envs(remote.variables()));
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn files_that_were_downloaded_have_the_windows_of_the_hub() {
    let expected = undisturbed().clone();
    let workspace = corpus::workspace();
    for (folder, seed) in [("plays", 20), ("objects", 30)] {
        let folder = workspace.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        files(seed).into_iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    }
    let mut job = job(", mode: Always");
    job.corpus = job.corpus.replace("hf://datasets/org/plays/", "plays/").replace("s3://bucket/plays/", "objects/");
    job.corpus = job.corpus.replace("maxBytes: 1", "maxBytes: 100000000");
    let found = finished(Launched::start(workspace.path(), &job, &[]), workspace.path());
    // the receipts (hash chains over the steps) differ, because they start with the job's identity, which contains the
    // digests of the hub and the ETags of the store
    assert_eq!(Hashes { receipt: String::new(), ..found }, Hashes { receipt: String::new(), ..expected });
}

#[test]
fn a_source_that_changes_ends_the_job_with_a_checkpoint_and_a_sentence() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let texts: Vec<String> = (0..6).map(|file| corpus::jsonl(40, 40, 30 + file)).collect();
    let write = |file: usize, text: &str| std::fs::write(workspace.join(format!("corpus/part-{file}.jsonl")), text);
    texts.iter().enumerate().for_each(|(file, text)| write(file, text).unwrap());
    let job = TestJob {
        name: "changing".into(),
        corpus: "paths: [\"corpus/part-*.jsonl\"]\n    streaming: {mode: Always, windowSequences: 24}".into(),
        steps: 90,
        decay_steps: Some(90),
        stages: 2,
        extra: "  checkpoint: {everySteps: 50}\n  restart: {maxRestarts: 0}\n".into(),
        ..TestJob::default()
    };
    let mut launched = Launched::start(workspace, &job.endless(), &[]);
    launched.wait_for_step(3);
    (0..6).for_each(|file| write(file, &texts[file].repeat(2)).unwrap());
    let outcome: Outcome = launched.finish(workspace);
    assert!(!outcome.status.success());
    says(&outcome, "changed while it was being read");
    says(&outcome, "can begin:");
    let folder = workspace.join("changing");
    assert_eq!(checkpoints(&folder).last().copied(), Some(records(&folder).len() as u64));
    // with the original source, the job continues
    (0..6).for_each(|file| write(file, &texts[file]).unwrap());
    let continued = finished(Launched::start(workspace, &job, &[]), workspace);
    let other = TestJob { name: "undisturbed".into(), stages: 1, ..job };
    assert_eq!(continued, finished(Launched::start(workspace, &other, &[]), workspace));
}

/// The commands that train steps again read the blocks from the hub and the volume again.
#[test]
fn replay_audit_blame_and_diff_work_on_streamed_mixtures() {
    let (remote, workspace) = (Remote::start(), corpus::workspace());
    let workspace = workspace.path();
    let extra = "  checkpoint: {everySteps: 10, keepLast: 10}\n".to_owned();
    let job = TestJob { steps: 30, decay_steps: Some(30), stages: 2, extra, ..job("") };
    let outcome = start(&remote, workspace, &job, &[]).finish(workspace);
    says(&outcome, "of the streamed corpus: ");
    assert!(outcome.status.success() && !outcome.stdout.contains("corpus: 0 documents"), "{}", outcome.stdout);
    let other = TestJob { name: "other".into(), ..job };
    finished(start(&remote, workspace, &other, &["--set", "training.gradientClipNorm=0.2"]), workspace);

    let [folder, other] = ["streamed", "other"].map(|name| workspace.join(name).display().to_string());
    let expect = |arguments: &[&str], code: i32, words: &str| {
        let (found, printed) = run_command(Command::new(stagecoach()).args(arguments).envs(remote.variables()));
        assert!(found == Some(code) && printed.contains(words), "{arguments:?}: {found:?}, no {words:?} in\n{printed}");
    };
    expect(&["replay", &folder, "--step", "15"], 0, "equal");
    expect(&["audit", &folder, "--all"], 0, "steps 21 to 30: equal");
    expect(&["blame", &folder, "--step", "15", "--top", "100"], 0, ".jsonl:");
    expect(&["timeline", &folder], 0, "stage 0 waited ");
    expect(&["diff", &folder, &other], 74, "training.gradientClipNorm is 0.7 and 0.2");
    std::fs::write(workspace.join("corpus/small.jsonl"), corpus::jsonl(400, 40, 8)).unwrap();
    expect(
        &["blame", &folder, "--step", "15"],
        74,
        "the corpus or the tokenizer on this machine differs from the run's",
    );
}
