//! Counts how often the host waits for the GPU in a step. One job runs twice with the preloaded library
//! `tests/host-waits`, which records the calls of the CUDA runtime in which the host waits. The second run has more
//! steps, so the difference between the runs excludes the calls of the start-up.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_tests::stagecoach;

use super::gpu_run::GpuRun;
use super::model::{JobLayout, MODELS};
use super::speed::train;
use crate::stats::line;

const STEPS: [usize; 2] = [4, 12];

pub(super) fn measure(run: &GpuRun) -> Value {
    let [few, many] = STEPS.map(|steps| calls(run, steps));
    let steps = (STEPS[1] - STEPS[0]) as f64;
    let a_step = |(call, count): (&String, &usize)| {
        let before = few.get(call).copied().unwrap_or_default();
        (call.clone(), (*count as f64 - before as f64) / steps)
    };
    let calls: BTreeMap<String, f64> = many.iter().map(a_step).collect();
    let all = calls.values().fold(0.0, |all, times| all + times); // `sum` of no values is -0
    line("the host waits for the GPU", format!("{all:.1} times a step"), "by calls of the CUDA runtime");
    json!({ "timesAStep": all, "calls": calls, "steps": STEPS })
}

/// Returns the number of calls for each pair of function and thread. The key has the form `FUNCTION THREAD`.
fn calls(run: &GpuRun, steps: usize) -> BTreeMap<String, usize> {
    let noted = run.folder().join(format!("host-waits-{steps}"));
    let text = |path: &std::path::Path| path.display().to_string();
    let library = text(&stagecoach().with_file_name("libhost_waits.so"));
    let environment = vec![("LD_PRELOAD", library), ("HOST_WAITS", text(&noted))];
    let layout = JobLayout { name: "host-waits", steps, environment, ..JobLayout::without_checkpoints() };
    train(run, &MODELS[0], &layout);
    let mut calls = BTreeMap::new();
    for call in std::fs::read_to_string(noted).unwrap_or_default().lines() {
        *calls.entry(call.to_owned()).or_default() += 1;
    }
    calls
}
