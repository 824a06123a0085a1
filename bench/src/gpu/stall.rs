//! Measures the time by which checkpoints delay a step, for checkpoints on the volume and in memory.

use serde_json::{Value, json};

use super::gpu_run::{GpuRun, measured_or_failure};
use super::model::{JobLayout, MODELS};
use super::speed::{TrainedJob, WARM_UP, numbers, train};
use crate::stats::{line, median};

pub(super) fn measure(run: &GpuRun) -> Value {
    let volume = JobLayout {
        name: "checkpoints",
        steps: 24,
        checkpoint: json!({ "everySteps": 5, "keepLast": 1 }),
        ..JobLayout::without_checkpoints()
    };
    let memory = JobLayout {
        name: "memory-checkpoints",
        stages: 2,
        checkpoint: json!({ "everySteps": 0, "memory": { "everySteps": 1 } }),
        steps: 12,
        ..volume.clone()
    };
    json!({
        "volume": share_of_a_step(run, &volume, "checkpoint"),
        "memory": share_of_a_step(run, &memory, "memoryCheckpoint"),
    })
}

/// Measures the stall of each checkpoint relative to the median time of a step. `field` is the field of the metrics
/// with the checkpoint's record.
fn share_of_a_step(run: &GpuRun, layout: &JobLayout, field: &str) -> Value {
    let model = &MODELS[0];
    let name = model.job_name(layout);
    if !run.has_time_for(&format!("stall of {name}"), 20) {
        return Value::Null;
    }
    let mut reported = measured_or_failure(&name, || {
        let TrainedJob { metrics, .. } = train(run, model, layout);
        let checkpoints: Vec<Value> = metrics[WARM_UP..].iter().map(|line| line[field].clone()).collect();
        let (stalls, step) = (numbers(&checkpoints, "stallSeconds"), median(&numbers(&metrics[WARM_UP..], "seconds")));
        assert!(!stalls.is_empty(), "no step of {name} has the record of a checkpoint");
        let share = median(&stalls) / step;
        line(&name, format!("{:.2} % of a step", 100.0 * share), &format!("which takes {step:.3} s"));
        json!({ "stallSeconds": stalls, "stepSeconds": step, "shareOfAStep": share,
                "bytes": checkpoints.iter().find_map(|of| of["bytes"].as_u64().or(of["bytesSent"].as_u64())) })
    });
    reported["model"] = model.name.into();
    reported["isShrunk"] = run.gpu().is_none().into();
    reported["stages"] = layout.stages.into();
    reported
}
