//! The project never removes or overwrites files that it did not create. It uses a folder as a job's folder only if the
//! folder is new or is a job's folder already. A user's files in a job's folder stay unchanged, even with --fresh.

use std::fs;
use std::path::Path;

use stagecoach_tests::fixture::contents;
use stagecoach_tests::{Group, Launched, Outcome, TestJob, corpus, hugging_face, says, signal, stagecoach};

fn write(folder: &Path, name: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("my own {name}")).unwrap();
}

fn run(workspace: &Path, job: &TestJob, arguments: &[&str]) -> Outcome {
    Launched::start(workspace, job, arguments).finish(workspace)
}

/// The files of a user. The names of their folders also occur in a job's folder.
const MINE: [&str; 6] = [
    "logs/mytext.txt",
    "plots/mine.svg",
    "termination/note.txt",
    "checkpoints/best/weights.bin",
    "damaged/car.jpg",
    "fences/garden.txt",
];

#[test]
fn a_folder_that_is_not_a_jobs_is_refused_and_left_as_it_is() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("notes");
    let also = ["metrics.jsonl", "result.json", "state.json", "job.yaml", "lock"];
    MINE.iter().chain(&also).for_each(|name| write(&folder, name));
    let before = contents(&folder);
    let job = TestJob { name: "notes".into(), ..TestJob::default() };
    for arguments in [&[][..], &["--fresh"]] {
        let outcome = run(workspace.path(), &job, arguments);
        assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
        says(&outcome, "notes is not a job's folder: it holds checkpoints, damaged, fences and 8 more");
        says(&outcome, "spec.storage.path");
        assert!(!outcome.stdout.contains("removing"), "{}", outcome.stdout);
        assert_eq!(contents(&folder), before, "{arguments:?}");
    }
    // the stage of a pod refuses the folder too
    let mut group = Group::start(workspace.path(), &TestJob { stages: 1, ..job }, "a", 1);
    let ended = &group.finish()[0];
    assert_eq!((ended.code, &ended.termination_message["kind"]), (Some(78), &"InvalidConfig".into()), "{}", ended.log);
    assert!(
        ended.termination_message["message"].as_str().unwrap().contains("is not a job's folder"),
        "{}",
        ended.termination_message
    );
    assert_eq!(contents(&folder), before);
    // an import refuses the folder too
    let mut import = std::process::Command::new(stagecoach());
    import.args(["checkpoint", "import", "--from"]).args([&hugging_face(), &folder]);
    let output = import.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(contents(&folder), before);
}

/// The trainer makes all checks that can refuse a fresh start before it removes any file.
#[test]
fn a_fresh_start_that_cannot_begin_removes_nothing() {
    let workspace = corpus::workspace();
    let job = TestJob { stages: 1, ..TestJob::default() };
    run(workspace.path(), &job, &[]).hashes();
    let folder = workspace.path().join("small");
    let before = contents(&folder);
    for (set, words) in [
        ("data.paths=[\"corpus/typo.txt\"]", "corpus/typo.txt"),
        ("data.tokenizer={type: File, file: {path: nowhere.json}}", "nowhere.json"),
        ("checkpoint.initFrom.path=nowhere", "spec.checkpoint.initFrom.path"),
        ("pipeline.memoryLimit=1Mi", "stage 0 doesn't fit"),
    ] {
        let outcome = run(workspace.path(), &job, &["--fresh", "--set", set]);
        assert!(matches!(outcome.status.code(), Some(74 | 78)), "{set}: {}\n{}", outcome.stdout, outcome.stderr);
        says(&outcome, words);
        assert!(!outcome.stdout.contains("removing"), "{set}: {}", outcome.stdout);
        assert_eq!(contents(&folder).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{set}");
    }
}

#[test]
fn a_job_does_not_live_in_its_corpus_in_the_cache_or_in_the_volumes_root() {
    let workspace = corpus::workspace();
    fs::write(workspace.path().join("corpus/logs"), "text").unwrap();
    let before = contents(&workspace.path().join("corpus"));
    let storage = |path: &str| TestJob { extra: format!("  storage: {{path: {path}}}\n"), ..TestJob::default() };
    for (job, words) in [
        (
            TestJob { name: "corpus".into(), ..TestJob::default() },
            "metadata.name: \"corpus\" is where spec.data.paths[0]",
        ),
        (storage("corpus"), "spec.storage.path: \"corpus\" is where spec.data.paths[0]"),
        (storage("./"), "is the volume's root"),
        (TestJob { name: "cache".into(), ..TestJob::default() }, "the token cache"),
    ] {
        let outcome = run(workspace.path(), &job, &["--fresh"]);
        assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
        says(&outcome, words);
        assert_eq!(contents(&workspace.path().join("corpus")), before);
    }
}

#[test]
fn a_job_file_in_the_jobs_own_folder_stays_as_it_was_written() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("small");
    fs::create_dir(&folder).unwrap();
    let (file, text) = (folder.join("job.yaml"), format!("# my notes on this job\n{}", TestJob::default().yaml()));
    fs::write(&file, &text).unwrap();
    let run = |arguments: &[&str]| {
        Launched::start_file(workspace.path(), &file, folder.clone(), arguments).finish(workspace.path())
    };
    let first = run(&["--stages", "2"]);
    let hashes = first.hashes();
    assert!(!first.stdout.contains("removing"), "{}", first.stdout);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    says(&run(&[]), "is trained already");

    MINE.iter().for_each(|name| write(&folder, name));
    let is_mine = |name: &Path| MINE.iter().any(|mine| name == Path::new(mine));
    let mine = || contents(&folder).into_iter().filter(|(name, _)| is_mine(name)).collect::<Vec<_>>();
    let before = mine();
    let again = run(&["--fresh"]);
    says(&again, "removing the files of earlier runs in ");
    says(
        &again,
        ": 1 checkpoint (of step 20), result.json, metrics.jsonl, state.json, resolved-job.yaml, speeds.json, logs, plots, ",
    );
    says(&again, "start  steps 1 to 20");
    assert_eq!((again.hashes(), mine()), (hashes, before));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert!(fs::read_to_string(folder.join("resolved-job.yaml")).unwrap().contains("stages: 3"));
}

#[test]
fn a_folder_that_pods_made_is_a_jobs_folder_and_fresh_removes_it() {
    let workspace = corpus::workspace();
    let job = TestJob { steps: 100_000, extra: "  checkpoint: {everySteps: 3}\n".into(), ..TestJob::default() };
    let mut group = Group::start(workspace.path(), &job, "a", 1);
    let folder = workspace.path().join("small");
    stagecoach_tests::until("a checkpoint", || {
        (group.is_whole() && folder.join("checkpoints/step-00000003").exists()).then_some(())
    });
    group.pids().into_iter().for_each(|pid| signal(pid, libc::SIGKILL));
    drop(group);
    let short = TestJob { steps: 20, ..job };
    let fresh = run(workspace.path(), &short, &["--fresh"]);
    says(&fresh, "metrics.jsonl, speeds.json, fences\n");
    says(&fresh, "start  steps 1 to 20");
    let elsewhere = corpus::workspace();
    assert_eq!(fresh.hashes(), run(elsewhere.path(), &short, &[]).hashes());
}
