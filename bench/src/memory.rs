//! Measures the cost per step of memory checkpoints. In such a checkpoint, a stage sends a copy of its weights and
//! optimizer state to another stage. The measured jobs have such a checkpoint at every step, or at the interval that
//! `Auto` chooses.

use std::path::Path;

use serde_json::{Value, json};

use crate::job::BenchJob;
use crate::stats::{line, mean, median};

/// The number of rounds. In a round, a job of each kind runs once.
const ROUNDS: u64 = 3;
/// The number of steps of a job. The first `WARM_UP` steps are not counted, because connections, caches and the
/// interval that `Auto` chooses need these steps to settle.
const STEPS: u64 = 36;
const WARM_UP: usize = 18;

pub(crate) fn measure(folder: &Path) -> Value {
    println!("33 million parameters in two stages, with and without checkpoints in memory");
    let sizes = [16, 48].map(|rows| of_batch(folder, rows));
    json!({ "sizes": sizes })
}

fn of_batch(folder: &Path, batch: u32) -> Value {
    const KINDS: [(&str, &str); 3] = [
        ("none", "{everySteps: 0}"),
        ("every step", "{everySteps: 0, memory: {everySteps: 1}}"),
        ("Auto", "{everySteps: 0, memory: {everySteps: Auto}}"),
    ];
    let mut seconds = [const { Vec::new() }; KINDS.len()];
    let (mut stalls, mut bytes) = ([const { Vec::new() }; KINDS.len()], [0.0; KINDS.len()]);
    for _ in 0..ROUNDS {
        for (index, (_, checkpoint)) in KINDS.into_iter().enumerate() {
            let job = BenchJob { name: "held", steps: STEPS, batch, checkpoint, ..BenchJob::default() };
            let _ = std::fs::remove_dir_all(folder.join(job.name));
            job.run(folder);
            for line in job.metrics(folder).iter().skip(WARM_UP) {
                seconds[index].push(line["seconds"].as_f64().unwrap());
                stalls[index].extend(line["memoryCheckpoint"]["stallSeconds"].as_f64());
                bytes[index] += line["memoryCheckpoint"]["bytesSent"].as_f64().unwrap_or(0.0);
            }
        }
    }
    // the mean, because with Auto most steps send no copy
    let throughput = |index: usize| mean(&seconds[0]) / mean(&seconds[index]);
    for index in 1..KINDS.len() {
        let a_step = bytes[index] / seconds[index].len() as f64;
        line(
            &format!("{batch} rows, {}", KINDS[index].0),
            format!("{:.3} of the speed without", throughput(index)),
            &format!(
                "steps of {:.3} s without; stage 0 sends {:.0} MB a step and waits {:.1} ms",
                median(&seconds[0]),
                a_step / 1e6,
                1e3 * mean(&stalls[index])
            ),
        );
    }
    json!({
        "rows": batch,
        "kinds": KINDS.map(|(name, _)| name),
        "stepSeconds": seconds,
        "stallSeconds": stalls,
        "bytesSent": bytes,
        "throughputEveryStep": throughput(1),
        "throughputAuto": throughput(2),
    })
}
