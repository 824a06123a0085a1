//! Recovery: from the kill of a stage to the first step of the next attempt.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::{signal, until};

use crate::job::{BenchJob, Model};
use crate::slow_volume;
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
        "slowVolume": slow_volume::measure(folder),
    })
}

fn with(folder: &Path, source: &str, checkpoint: &'static str, spares: u32) -> Value {
    let job = BenchJob { name: "killed", stages: 3, model: Model::Small, checkpoint, spares, ..BenchJob::default() };
    let _ = std::fs::remove_dir_all(folder.join(job.name));
    let mut launched = job.start(folder);
    let stdout = folder.join("stdout");
    let lines = |marker: &str| {
        std::fs::read_to_string(&stdout).unwrap_or_default().lines().filter(|line| line.starts_with(marker)).count()
    };
    launched.wait_for_step(5);
    let mut seconds = Vec::new();
    for kill in 0..KILLS {
        if spares > 0 {
            let standing = || lines("spare ") > 2 * kill;
            until("a spare that stands by", 120, || standing().then_some(()));
        }
        let saved = lines("saved");
        until("a checkpoint", 120, || (lines("saved") > saved).then_some(()));
        let (stage, starts) = (launched.stages()[kill % 3], lines("start "));
        let started = Instant::now();
        signal(stage, libc::SIGKILL);
        until("the next attempt", 120, || (lines("start ") > starts).then_some(()));
        let steps = lines("step ");
        until("its first step", 120, || (lines("step ") > steps).then_some(()));
        seconds.push(started.elapsed().as_secs_f64());
    }
    signal(launched.child.id(), libc::SIGINT);
    until("the launcher's end", 120, || launched.child.try_wait().unwrap());
    line(
        &format!("kill to first new step, {source}"),
        format!("{:.2} s", median(&seconds)),
        &format!("worst {:.2} s", worst(&seconds)),
    );
    json!({ "seconds": seconds, "median": median(&seconds), "worst": worst(&seconds) })
}
