//! Measures recovery: the time from the kill of a stage to the first step of the next group, which is the set of stages
//! that train together after the loss.

mod slow_volume;

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::{Launched, signal, until, until_within};

use crate::job::{BenchJob, ModelSize};
use crate::stats::{line, median, worst};

const KILLS: usize = 20;
const VOLUME: &str = "{everySteps: 20, keepLast: 1}";
const MEMORY: &str = "{everySteps: 20, keepLast: 1, memory: {everySteps: 1}}";

pub(crate) fn measure(folder: &Path) -> Value {
    println!("killing one of three stages {KILLS} times");
    json!({
        "volume": with(folder, "from the volume", VOLUME, 0),
        "memory": with(folder, "from memory", MEMORY, 0),
        "volumeSpare": with(folder, "from the volume, with a spare", VOLUME, 1),
        "memorySpare": with(folder, "from memory, with a spare", MEMORY, 1),
        "replica": replica(folder),
        "slowVolume": slow_volume::measure(folder),
    })
}

fn with(folder: &Path, source: &str, checkpoint: &'static str, spares: u32) -> Value {
    let job =
        BenchJob { name: "killed", stages: 3, model: ModelSize::Small, checkpoint, spares, ..BenchJob::default() };
    let _ = std::fs::remove_dir_all(folder.join(job.name));
    let mut launched = job.start(folder);
    let lines = |marker: &str| lines(folder, marker);
    launched.wait_for_step(5);
    let mut seconds = Vec::new();
    for kill in 0..KILLS {
        if spares > 0 {
            let standing = || lines("spare ") > 2 * kill;
            until("a spare that stands by", || standing().then_some(()));
        }
        let saved = lines("saved");
        until("a checkpoint", || (lines("saved") > saved).then_some(()));
        seconds.push(kill_to_first_step(&launched, folder, kill % 3, 600));
    }
    end(&mut launched);
    line(
        &format!("kill to first new step, {source}"),
        format!("{:.2} s", median(&seconds)),
        &format!("worst {:.2} s", worst(&seconds)),
    );
    json!({ "seconds": seconds, "median": median(&seconds), "worst": worst(&seconds) })
}

/// Kills the stages of two replicas one after the other, including the leader (the stage that coordinates the group).
/// After each kill, measures the time until the other replica, which continues alone, finishes a step.
fn replica(folder: &Path) -> Value {
    let job = BenchJob {
        name: "replicated",
        data_parallel: 2,
        model: ModelSize::Small,
        checkpoint: MEMORY,
        ..BenchJob::default()
    };
    let _ = std::fs::remove_dir_all(folder.join(job.name));
    let mut launched = job.start(folder);
    launched.wait_for_step(5);
    let (mut seconds, mut step_seconds) = (Vec::new(), Vec::new());
    for kill in 0..KILLS {
        let state = || std::fs::read_to_string(folder.join(job.name).join("state.json")).unwrap_or_default();
        let training = || serde_json::from_str::<Value>(&state()).ok()?["trainingReplicas"].as_u64();
        until("both replicas to train", || (training() == Some(2)).then_some(()));
        launched.wait_for_step(launched.steps() + 5);
        let metrics = job.metrics(folder);
        let last = metrics.iter().rev().take(5).filter_map(|line| line["seconds"].as_f64());
        step_seconds.push(median(&last.collect::<Vec<_>>()));
        seconds.push(kill_to_first_step(&launched, folder, kill % 4, 600));
    }
    end(&mut launched);
    line(
        "kill to next finished step, without the replica",
        format!("{:.2} s", median(&seconds)),
        &format!(
            "worst {:.2} s, a step takes {:.2} s; at most a step and 0.5 s",
            worst(&seconds),
            median(&step_seconds)
        ),
    );
    json!({ "seconds": seconds, "median": median(&seconds), "worst": worst(&seconds), "step": median(&step_seconds) })
}

/// Returns the number of lines in a launcher's output that begin with `marker`.
fn lines(folder: &Path, marker: &str) -> usize {
    let printed = std::fs::read_to_string(folder.join("stdout")).unwrap_or_default();
    printed.lines().filter(|line| line.starts_with(marker)).count()
}

/// Kills a stage. Returns the seconds until the first new step. Panics if the next group takes longer than `limit`
/// seconds to start, or longer than `limit` seconds from its start to its first step.
pub(crate) fn kill_to_first_step(launched: &Launched, folder: &Path, stage: usize, limit: u64) -> f64 {
    let (pid, starts) = (launched.stages()[stage], lines(folder, "start "));
    let started = Instant::now();
    signal(pid, libc::SIGKILL);
    until_within("the next group", limit, || (lines(folder, "start ") > starts).then_some(()));
    let steps = lines(folder, "step ");
    until_within("the first step of the next group", limit, || (lines(folder, "step ") > steps).then_some(()));
    started.elapsed().as_secs_f64()
}

/// Ends a launcher with SIGINT, as Ctrl-C does.
pub(crate) fn end(launched: &mut Launched) {
    signal(launched.child.id(), libc::SIGINT);
    until_within("the launcher's end", 600, || launched.child.try_wait().unwrap());
}
