//! Measures the loss of one of three stages while the volume is slow: the time until the next step, and the bytes that
//! the stages read. In the first case, all stages start again. In the second case, the other stages keep running. In
//! the third case, they also keep running, and the next stage has a copy of the lost stage's weights and optimizer
//! state in memory.

use std::path::Path;

use serde_json::{Value, json};
use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE, tensor_bytes_read};
use stagecoach_tests::{stagecoach, until_within};

use super::{end, kill_to_first_step};
use crate::job::{BenchJob, ModelSize};
use crate::stats::line;

/// The number of bytes that all stages together can read per second.
const BYTES_PER_SECOND: u64 = 50_000_000;
const STAGES: usize = 3;
const VOLUME: &str = "{everySteps: 4, keepLast: 1}";
const MEMORY: &str = "{everySteps: 4, keepLast: 1, memory: {everySteps: 1}}";

pub(crate) fn measure(folder: &Path) -> Value {
    println!("a volume of which {} MB can be read in a second", BYTES_PER_SECOND / 1_000_000);
    json!({
        "bytesPerSecond": BYTES_PER_SECOND,
        "allAnew": lose(folder, "all stages restart", VOLUME, 0),
        "survivorsStay": lose(folder, "survivors stay", VOLUME, 120),
        "memory": lose(folder, "from memory", MEMORY, 120),
    })
}

/// Kills stage 1 after the first checkpoint.
fn lose(folder: &Path, what: &str, checkpoint: &'static str, reform_timeout_seconds: u32) -> Value {
    let job = BenchJob {
        name: "slow",
        stages: STAGES,
        model: ModelSize::Largest,
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
    until_within("a checkpoint", 600, || (!stagecoach_tests::checkpoints(&job_folder).is_empty()).then_some(()));
    launched.wait_for_stages(STAGES);
    let seconds = kill_to_first_step(&launched, folder, 1, 600);
    end(&mut launched);
    let bytes = tensor_bytes_read::<STAGES>(&records);
    let megabytes = bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1e6)).join(" / ");
    line(
        &format!("kill to first new step, {what}"),
        format!("{seconds:.1} s"),
        &format!("read by stage: {megabytes} MB"),
    );
    json!({ "seconds": seconds, "bytesReadByStage": bytes })
}
