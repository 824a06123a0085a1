//! A stage of three that is lost while the volume is slow: how long until the next step, and how many bytes the stages read, if
//! all start anew, if the others stay, and if the next stage has a copy in memory.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE, traced};
use stagecoach_tests::{Launched, signal, stagecoach, until};

use crate::job::{BenchJob, Model};
use crate::stats::line;

/// What all stages together read in a second, at most.
const BYTES_PER_SECOND: u64 = 50_000_000;
const STAGES: usize = 3;
const VOLUME: &str = "{everySteps: 4, keepLast: 1}";
const MEMORY: &str = "{everySteps: 4, keepLast: 1, memory: {everySteps: 1}}";

pub(crate) fn measure(folder: &Path) -> Value {
    println!("a volume of which {} MB can be read in a second", BYTES_PER_SECOND / 1_000_000);
    json!({
        "bytesPerSecond": BYTES_PER_SECOND,
        "allAnew": lose(folder, "all stages anew", VOLUME, 0),
        "survivorsStay": lose(folder, "survivors stay", VOLUME, 120),
        "memory": lose(folder, "from memory", MEMORY, 120),
    })
}

/// Kills stage 1 after the first checkpoint.
fn lose(folder: &Path, what: &str, checkpoint: &'static str, reform_timeout_seconds: u32) -> Value {
    let job = BenchJob {
        name: "slow",
        stages: STAGES,
        model: Model::Largest,
        checkpoint,
        reform_timeout_seconds,
        ..BenchJob::default()
    };
    let records = folder.join("records");
    for left in [&records, &folder.join(job.name)] {
        let _ = std::fs::remove_dir_all(left);
    }
    std::fs::create_dir(&records).unwrap();
    let rate = format!("rate={BYTES_PER_SECOND}");
    let environment = [(FAULT_VARIABLE, rate.as_str()), (RECORDS_VARIABLE, records.to_str().unwrap())];
    let mut launched = job.start_program(&stagecoach().with_file_name("faulty"), folder, &environment);
    let job_folder = folder.join(job.name);
    until("a checkpoint", 600, || (!stagecoach_tests::checkpoints(&job_folder).is_empty()).then_some(()));
    let stdout = folder.join("stdout");
    let lines = |marker: &str| {
        std::fs::read_to_string(&stdout).unwrap_or_default().lines().filter(|line| line.starts_with(marker)).count()
    };
    let starts = lines("start ");
    let started = Instant::now();
    signal(launched.wait_for_stages(STAGES)[1], libc::SIGKILL);
    until("the next group", 600, || (lines("start ") > starts).then_some(()));
    let steps = lines("step ");
    until("its first step", 600, || (lines("step ") > steps).then_some(()));
    let seconds = started.elapsed().as_secs_f64();
    end(&mut launched);
    let mut bytes = [0; STAGES];
    for call in traced(&records).iter().filter(|call| call.path.ends_with(".safetensors")) {
        bytes[call.rank as usize] += call.bytes_read;
    }
    let megabytes = bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1e6)).join(" / ");
    line(
        &format!("kill to first new step, {what}"),
        format!("{seconds:.1} s"),
        &format!("read by stage: {megabytes} MB"),
    );
    json!({ "seconds": seconds, "bytesReadByStage": bytes })
}

fn end(launched: &mut Launched) {
    signal(launched.child.id(), libc::SIGINT);
    until("the launcher's end", 600, || launched.child.try_wait().unwrap());
}
