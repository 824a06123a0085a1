//! `stagecoach replay` computes steps of a run again, and compares them with the run's record. The run may have lost
//! stages or resumed with a different number of stages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stagecoach_checkpoint::{FileSystemVolume, Manifest, read_manifest};
use stagecoach_tests::fixture::{contents, copy, flip, records};
use stagecoach_tests::{
    Launched, TestJob, checkpoints, corpus, each, run, run_command, signal, spawn, stagecoach, text, until,
};

/// Returns a job with a checkpoint every ten steps.
pub fn job(steps: u64) -> TestJob {
    let extra = "  checkpoint: {everySteps: 10, keepLast: 9, mode: Sync}\n".into();
    TestJob { steps, decay_steps: Some(40), extra, ..TestJob::default() }
}

/// Trains `job`, kills one of its stages, and later stops the job. Then trains it to its end with another number of
/// stages and another schedule. Returns the job's folder.
pub fn disturbed(workspace: &Path, job: &TestJob) -> PathBuf {
    let folder = workspace.join(&job.name);
    let mut first = Launched::start(workspace, &job.endless(), &[]);
    first.wait_for_step(12);
    signal(first.stages()[1], libc::SIGKILL);
    first.wait_for_restart(workspace);
    first.interrupt(workspace);
    let last = checkpoints(&folder).last().copied().unwrap();
    let steps = (last + 15).next_multiple_of(10);
    let then = TestJob { stages: 2, schedule: "ZBVZeroBubble", virtual_stages: 2, steps, ..job.clone() };
    Launched::start(workspace, &then, &[]).finish(workspace).hashes();
    folder
}

/// Changes the manifest of a checkpoint, and updates the manifest's hash of itself.
pub fn change_manifest(job: &Path, step: u64, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = read_manifest(&FileSystemVolume::new(job), step).unwrap();
    change(&mut manifest);
    let path = job.join(format!("checkpoints/step-{step:08}/manifest.json"));
    std::fs::write(path, manifest.to_bytes().unwrap()).unwrap();
}

/// Changes the lines of the metrics file.
pub fn change_metrics(job: &Path, change: impl FnOnce(&mut Vec<serde_json::Value>)) {
    let mut lines = records(job);
    change(&mut lines);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(job.join("metrics.jsonl"), text).unwrap();
}

#[test]
fn every_step_of_a_job_with_a_hard_life_replays_equal_over_any_stages() {
    let workspace = corpus::workspace();
    let folder = disturbed(workspace.path(), &job(40));
    let before = contents(&folder);
    let mut draws = corpus::Draws(11);
    let last = checkpoints(&folder).last().copied().unwrap();
    let drawn = (0..6).map(|_| (1 + draws.below(last), 1 + draws.below(4)));
    for (step, stages) in [(1, 1), (11, 3), (last, 2)].into_iter().chain(drawn) {
        let (step, stages) = (step.to_string(), stages.to_string());
        let (code, printed) = run(&["replay", text(&folder), "--step", &step, "--stages", &stages]);
        assert_eq!(code, Some(0), "step {step} over {stages} stages\n{printed}");
        assert!(printed.contains("bit for bit") && printed.contains("equal"), "{printed}");
    }
    // replay several steps with the run's number of stages and schedule, and write a timeline
    let trace = workspace.path().join("trace.json");
    let (code, printed) = run(&["replay", text(&folder), "--step", "13", "--until", "15", "--trace", text(&trace)]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("from the checkpoint of step 1") && printed.contains("steps, bit for bit"), "{printed}");
    assert_eq!(printed.lines().filter(|line| line.ends_with("  equal")).count(), 3, "{printed}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 20);
    assert!(contents(&folder) == before, "a replay changes nothing in the run's folder");
    assert!(!workspace.path().join(".replay").exists(), "the scratch folder is removed");
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_steps_of_three_jobs_with_hard_lives_replay_equal() {
    let workspace = corpus::workspace();
    let named = |name: &str| TestJob { name: name.into(), ..job(40) };
    let jobs = [
        TestJob { precision: "BFloat16", schedule: "GPipe", recompute: "Selective", ..named("half") },
        TestJob { tied: true, schedule: "InterleavedZeroBubble", ..named("tied") },
        TestJob { packing: false, transport: "Shm", recompute: "Full", ..named("padded") },
    ];
    let folders = jobs.map(|job| disturbed(workspace.path(), &job));
    let mut draws = corpus::Draws(23);
    for index in 0..100 {
        let folder = &folders[index % folders.len()];
        let last = checkpoints(folder).last().copied().unwrap();
        let (step, stages) = ((1 + draws.below(last)).to_string(), (1 + draws.below(4)).to_string());
        let (code, printed) = run(&["replay", text(folder), "--step", &step, "--stages", &stages]);
        assert_eq!(code, Some(0), "{}, step {step} over {stages} stages\n{printed}", folder.display());
    }
}

/// Runs the commands of docs/REPLAY.md on jobs with the names and the number of steps that the page uses.
#[test]
fn the_pages_commands_run() {
    let extra = "  checkpoint: {everySteps: 100}\n".into();
    let evaluation = "{fraction: 0.1, everySteps: 100}".into();
    let job = TestJob {
        steps: 400,
        layers: 2,
        global_batch_size: 6,
        microbatches: 2,
        evaluation,
        extra,
        ..TestJob::default()
    };
    let (workspace, elsewhere) = (corpus::workspace(), corpus::workspace());
    each("runs", &[("shakespeare", 2, &workspace), ("again", 1, &elsewhere)], |_, (name, stages, workspace)| {
        let job = TestJob { name: (*name).into(), stages: *stages, ..job.clone() };
        Launched::start(workspace.path(), &job, &[]).finish(workspace.path()).hashes();
    });
    copy(&elsewhere.path().join("again"), &workspace.path().join("again"));
    let page = include_str!("../../../docs/REPLAY.md");
    let is_command = |line: &&str| line.starts_with("stagecoach ") && line.contains("workspace/shakespeare");
    let commands: Vec<&str> = page.lines().filter(is_command).collect();
    assert!(commands.len() >= 13, "{} commands", commands.len());
    each("commands", &commands, |_, command| {
        let command = command.split(" #").next().unwrap().trim_end();
        let line = command.replacen("stagecoach", text(&stagecoach()), 1).replace("workspace/", "");
        let line = line.replace("corpus/shakespeare/noise.txt", "corpus/small.jsonl");
        let (code, printed) = run_command(Command::new("sh").args(["-c", &line]).current_dir(workspace.path()));
        assert_eq!(code, Some(0), "{command}\n{printed}");
    });
}

#[test]
fn a_difference_is_reported_with_step_and_values() {
    let workspace = corpus::workspace();
    Launched::start(workspace.path(), &job(20), &[]).finish(workspace.path()).hashes();
    let folder = workspace.path().join("small");
    change_metrics(&folder, |lines| lines[13]["gradientNorm"] = 0.125.into());
    let (code, printed) = run(&["replay", text(&folder), "--step", "14"]);
    assert_eq!(code, Some(74), "{printed}");
    assert!(printed.contains("stagecoach: step 14 has the gradient norm 0.125 in the record and "), "{printed}");
    assert!(printed.contains("DIFFERS"), "{printed}");
    // a replay also compares the earlier steps that it trains
    assert_eq!(run(&["replay", text(&folder), "--step", "16"]).0, Some(74));
    assert_eq!(run(&["replay", text(&folder), "--step", "13"]).0, Some(0));
    for (arguments, words) in [
        (&["--step", "21"][..], "the record in"),
        (&["--step", "5", "--until", "4"], "--until is 4, before --step 5"),
        (&["--step", "5", "--workspace", "/nowhere"], "is not a folder"),
    ] {
        let (code, printed) = run(&[&["replay", text(&folder)], arguments].concat());
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains(words), "{printed}");
    }
    // with another corpus, the replay reports the difference
    std::fs::write(workspace.path().join("corpus/small.jsonl"), corpus::jsonl(400, 40, 8)).unwrap();
    for step in ["3", "13"] {
        let (code, printed) = run(&["replay", text(&folder), "--step", step]);
        assert_eq!(code, Some(74), "{printed}");
        assert!(
            printed.contains("the corpus or the tokenizer on this machine differs from the run's: data.corpus is"),
            "{printed}"
        );
    }
}

#[test]
fn a_copied_checkpoint_replays_beside_its_corpus() {
    let workspace = corpus::workspace();
    Launched::start(workspace.path(), &job(20), &[]).finish(workspace.path()).hashes();
    let elsewhere = tempfile::tempdir().unwrap();
    let copied = elsewhere.path().join("copied");
    let saved = copied.join("checkpoints/step-00000010");
    copy(&workspace.path().join("small/checkpoints/step-00000010"), &saved);
    let replay = |more: &[&str]| {
        let always = ["replay", text(&saved), "--step", "12", "--stages", "1", "--workspace", text(workspace.path())];
        run(&[&always, more].concat())
    };
    let (code, printed) = replay(&[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("there is no record to compare with"), "{printed}");
    std::fs::copy(workspace.path().join("small/metrics.jsonl"), copied.join("metrics.jsonl")).unwrap();
    let (code, printed) = replay(&[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("equal: 2 steps, bit for bit"), "{printed}");
    // the replay reports a different environment, and continues
    change_manifest(&copied, 10, |manifest| manifest.metadata.environment["threads"] = 7.into());
    let (code, printed) = replay(&[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("this is another environment than the run's (threads 1 instead of 7)"), "{printed}");
    // the replay reports a damaged checkpoint
    flip(&saved.join("stage-0.model.safetensors"));
    let (code, printed) = replay(&[]);
    assert_eq!(code, Some(74), "{printed}");
    assert!(printed.contains("stage-0.model.safetensors") && printed.contains("does not hold the bytes"), "{printed}");
}

#[test]
fn steps_that_were_added_replay_with_their_own_decay() {
    let workspace = corpus::workspace();
    let with_decay = |steps, decay_steps| TestJob { decay_steps, ..job(steps) };
    Launched::start(workspace.path(), &with_decay(20, None), &[]).finish(workspace.path()).hashes();
    Launched::start(workspace.path(), &with_decay(40, Some(40)), &[]).finish(workspace.path()).hashes();
    let folder = workspace.path().join("small");
    for step in ["7", "13", "24", "33"] {
        let (code, printed) = run(&["replay", text(&folder), "--step", step]);
        assert_eq!(code, Some(0), "step {step}\n{printed}");
    }
    // without a later checkpoint, a replay can start from an earlier one
    std::fs::remove_dir_all(folder.join("checkpoints/step-00000020")).unwrap();
    let (code, printed) = run(&["replay", text(&folder), "--step", "24"]);
    assert_eq!((code, printed.contains("from the checkpoint of step 10")), (Some(0), true), "{printed}");
    std::fs::remove_dir_all(folder.join("checkpoints/step-00000010")).unwrap();
    assert_eq!(run(&["replay", text(&folder), "--step", "20"]).0, Some(0));
    let (code, printed) = run(&["replay", text(&folder), "--step", "24"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("the steps after step 20 were added with another decay"), "{printed}");
}

/// The replay has one replica, which adds the gradients in the blocks that the run's replicas shared.
#[test]
fn steps_of_an_elastic_job_replay_with_one_replica() {
    let workspace = corpus::workspace();
    let elastic = "  elastic: {minDataParallel: 1, maxDataParallel: 2}\n";
    let job = job(20);
    let job = TestJob { stages: 2, data_parallel: 2, extra: format!("{elastic}{}", job.extra), ..job };
    Launched::start(workspace.path(), &job, &[]).finish(workspace.path()).hashes();
    let folder = workspace.path().join("small");
    let replays_equal = |step: &str| {
        let (code, printed) = run(&["replay", text(&folder), "--step", step]);
        assert_eq!(code, Some(0), "step {step}\n{printed}");
    };
    replays_equal("13");
    // without a checkpoint, only the number of replicas determines the number of blocks
    std::fs::remove_dir_all(folder.join("checkpoints")).unwrap();
    replays_equal("5");
}

#[test]
fn ctrl_c_ends_a_replay_and_removes_what_it_made() {
    let workspace = corpus::workspace();
    let long = TestJob { extra: "  checkpoint: {everySteps: 0}\n".into(), ..job(200) };
    Launched::start(workspace.path(), &long, &[]).finish(workspace.path()).hashes();
    let folder = workspace.path().join("small");
    let scratch = workspace.path().join(".replay");
    let steps = || -> usize {
        let metrics =
            std::fs::read_dir(&scratch).into_iter().flatten().flatten().map(|e| e.path().join("metrics.jsonl"));
        metrics.filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| text.lines().count()).sum()
    };
    let mut command = Command::new(stagecoach());
    command.args(["replay", text(&folder), "--step", "200"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawn(&mut command).unwrap();
    until("the replay to train", || (steps() > 2).then_some(()));
    signal(child.id(), libc::SIGINT);
    let status = until("the replay to exit", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(143));
    assert!(!scratch.exists());
    // a killed replay leaves its folder, which the next replay removes
    let mut child = spawn(&mut command).unwrap();
    until("the replay to train", || (steps() > 2).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(scratch.exists());
    assert_eq!(run(&["replay", text(&folder), "--step", "2"]).0, Some(0));
    assert!(!scratch.exists());
}
