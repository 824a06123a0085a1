//! Measures how fast a stage loads the tensors of a checkpoint into memory. The time includes the verification of each
//! tensor's hash.

use std::path::Path;

use serde_json::{Value, json};

use crate::job::BenchJob;
use crate::machine::read_seconds;
use crate::stats::{line, rate};

pub(crate) fn measure(folder: &Path) -> Value {
    println!("loading them");
    // this job continues the job that measured the saves
    let job =
        BenchJob { name: "behind", steps: 92, checkpoint: "{everySteps: 10, keepLast: 1}", ..BenchJob::default() };
    let checkpoint = folder.join("behind/checkpoints/step-00000090");
    let bytes: u64 =
        std::fs::read_dir(&checkpoint).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let read = read_seconds(&checkpoint);
    job.run(folder);
    let text = std::fs::read_to_string(folder.join("stdout")).unwrap();
    let printed = text.lines().find_map(|line| line.split_once("loaded in ")?.1.split('s').next()?.parse::<f64>().ok());
    let load = printed.expect("the output must contain `loaded in SECONDS s`");
    line(
        "a checkpoint",
        rate(bytes as f64, load),
        &format!("{:.0} % of the speed of reading the same files ({})", 100.0 * read / load, rate(bytes as f64, read)),
    );
    json!({ "bytes": bytes, "seconds": load, "readSeconds": read, "overRead": read / load })
}
