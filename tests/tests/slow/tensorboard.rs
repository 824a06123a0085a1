//! TensorBoard reads the files that `stagecoach tensorboard` writes, even if the metrics lose steps while the command
//! follows them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use stagecoach_tests::fixture::records;
use stagecoach_tests::{Launched, TestJob, corpus, refusal, signal, spawn, stagecoach, text, until};

/// Starts `stagecoach tensorboard --follow`, which writes the metrics of `job` as event files to `events`.
fn follow(job: &Path, events: &Path) -> Child {
    let mut command = Command::new(stagecoach());
    command.arg("tensorboard").arg(job).arg("--to").arg(events).arg("--follow");
    spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap()
}

fn size(events: &Path) -> u64 {
    std::fs::metadata(events.join("job/events.out.tfevents.stagecoach")).map_or(0, |file| file.len())
}

fn losses(job: &Path) -> Vec<(u64, f64)> {
    let pair = |record: &Value| (record["step"].as_u64().unwrap(), record["loss"].as_f64().unwrap());
    records(job).iter().map(pair).collect()
}

#[test]
fn a_folder_without_metrics_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [job, events] = ["nowhere", "events"].map(|name| folder.path().join(name));
    let (code, reported) = refusal(&["tensorboard", text(&job), "--to", text(&events)]);
    assert!(
        code != Some(0) && reported.contains("nowhere/metrics.jsonl does not exist: expected a job's folder"),
        "{reported}"
    );
    assert!(!events.exists());
}

#[test]
#[ignore = "needs a Python with tensorboard: make tensorboard"]
fn tensorboard_reads_what_a_run_measured() {
    let python = std::env::var("STAGECOACH_TENSORBOARD")
        .expect("STAGECOACH_TENSORBOARD is not set, expected a Python with tensorboard: run `make tensorboard`");
    let workspace = corpus::workspace();
    let path = workspace.path();
    let (folder, events) = (path.join("job"), path.join("events"));
    let job = TestJob { name: "job".to_owned(), ..TestJob::default() };
    Launched::start(path, &job, &[]).finish(path).hashes();
    let mut following = follow(&folder, &events);
    until("the run's events", || (size(&events) > 0).then_some(()));
    // the metrics lose their later steps, as if the job had started again from its first step
    let longer = losses(&folder);
    std::fs::write(folder.join("metrics.jsonl"), {
        let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        lines.lines().take(5).map(|line| line.to_owned() + "\n").collect::<String>()
    })
    .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tensorboard/read_events.py");
    let read = || {
        let output = Command::new(&python).arg(&script).arg(events.join("job")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let scalars: Value = serde_json::from_slice(&output.stdout).unwrap();
        let read = scalars["loss/train"].as_array().unwrap().iter();
        let read: Vec<(u64, f64)> = read.map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap())).collect();
        (read, scalars)
    };
    until("the steps that are left", || (read().0.len() == 5).then_some(()));
    signal(following.id(), libc::SIGTERM);
    following.wait().unwrap();
    let (read, scalars) = read();
    for ((step, loss), (read_step, read_loss)) in longer.iter().zip(read) {
        assert_eq!(*step, read_step);
        assert!((loss - read_loss).abs() < 1e-6, "step {step}: {loss} and {read_loss}");
    }
    for tag in ["gradient_norm", "learning_rate", "speed/tokens_per_second", "pipeline/bubble", "memory/peak_bytes"] {
        assert_eq!(scalars[tag].as_array().map(Vec::len), Some(5), "{tag}");
    }
}
